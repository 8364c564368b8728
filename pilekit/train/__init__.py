"""Training from raw shards: one config in, one run folder out.

launch.py        a run in several processes of this machine, and its restarts
notebook.py      a function in several processes, from a notebook
config/          the TOML file, typed; everything that can be wrong with it
run_folder.py    what a run leaves behind, and that only one process writes it
data.py          the tokenizer and the shards, as a stream
presets.py       the shapes of published models
model.py         presets, config.json or a model_dir to a model
device.py        what a config asks of the device
estimate.py      what a run takes of each rank's memory, before anything is allocated
activations.py   how much of that the backward pass needs of the forward pass
blocks.py        the transformer blocks of a model
optimizer.py     AdamW: which parameters decay, and which learn faster than others
schedule.py      the learning rate as a function of the step
precision.py     the numbers a step computes with
loss_scale.py    fp16's: what the loss is multiplied with
recompute.py     activations that are computed twice instead of kept
sharding.py      what each rank holds of a model
engine.py        a step of a model on any number of ranks
step_loss.py     the model with its loss, as one module
objectives.py    the loss of a batch
masked.py        the loss of masked language modelling
chunked_loss.py  cross entropy without ever holding all logits
checkpoint/      saving the state between two steps, beside training, and going on from it
step_sums.py     what a step came to on all ranks
metrics.py       metrics.jsonl
evaluation.py    bits per byte while training
logs.py          what is written down of the steps
tensorboard.py   the same figures for TensorBoard
watch.py         what needs a look while a model trains
peek.py          the command that shows a step's documents
profile.py       where the time of some steps goes
export.py        model/ in Hugging Face format
failed_step.py   what is told of a loss that is no number
interrupt.py     Ctrl-C and SIGTERM between two steps
trainer.py       the loop
"""
