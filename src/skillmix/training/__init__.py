"""Fine-tuning a model on conversations.

`data/` turns conversations into the examples of each step, `step/` performs one optimizer step, `loop.py` runs the
steps and writes checkpoints, and `job.py` and `job_run.py` do all of this for a train step of an experiment.
"""
