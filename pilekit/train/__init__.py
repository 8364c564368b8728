"""Training from raw shards: one config in, one run folder out.

`Trainer` (trainer.py) holds the loop, and open_run.py what it keeps between steps. It takes a config (config/), opens
the run folder (run_folder.py) and the stream of batches (data.py), builds the model (model/), and makes steps with an
engine (step/ is the native one; backends/ adapts DeepSpeed and accelerate). Between steps it saves its state
(training_state.py) as checkpoints (checkpoint/), writes figures (log/) and measures bits per byte (evaluation.py).
estimate.py predicts memory before anything is allocated, and launch/ starts several processes and handles signals.
"""
