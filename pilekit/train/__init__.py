"""Training from raw shards: one config in, one run folder out.

ranks.py               which process of the job this is, and what it tells the others
launch.py              a run in several processes of this machine, and its restarts
notebook.py            a function in several processes, from a notebook
config/                the TOML file, typed; everything that can be wrong with it
run_folder.py          what a run leaves behind, and that only one process writes it
data.py                the tokenizer and the shards, as a stream
presets.py             the shapes of published models
model.py               presets, config.json or a model_dir to a model
device.py              what a config asks of the device
estimate.py            what a run takes of each rank's memory, before anything is allocated
activations.py         how much of that the backward pass needs of the forward pass
optimizer.py           AdamW: which parameters decay, and which learn faster than others
schedule.py            the learning rate as a function of the step
precision.py           the numbers a step computes with
objectives.py          the loss of a batch
masked.py              models that predict masked tokens, and their loss
chunked_loss.py        cross entropy without ever holding all logits
checkpoint.py          saving the state between two steps, beside training, and going on from it
checkpoint_folders.py  the names of checkpoints, and the newest whole one among them
checkpoint_files.py    what makes a folder a checkpoint, and how it is verified
checkpoint_tensors.py  its tensors: which rank writes what, and how any number of ranks reads it
metrics.py             metrics.jsonl
export.py              model/ in Hugging Face format
failed_step.py         what is told of a loss that is no number
interrupt.py           Ctrl-C and SIGTERM between two steps
trainer.py             the loop
"""
