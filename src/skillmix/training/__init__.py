"""Fine-tuning: masks, micro-batches without padding, the loop and its checkpoints."""
