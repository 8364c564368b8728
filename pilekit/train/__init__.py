"""Training from raw shards: one config in, one run folder out.

config.py         the TOML file, typed; everything that can be wrong with it
run_folder.py     what a run leaves behind, and that only one process writes it
model.py          presets, config.json or a model_dir to a model
optimizer.py      AdamW, and which parameters decay
schedule.py       the learning rate as a function of the step
precision.py      the numbers a step computes with
objectives.py     the loss of a batch
chunked_loss.py   cross entropy without ever holding all logits
checkpoint.py     saving and loading the state between two steps
metrics.py        metrics.jsonl
export.py         model/ in Hugging Face format
trainer.py        the loop
"""
