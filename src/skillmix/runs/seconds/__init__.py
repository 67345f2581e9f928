"""Where the time of a step goes: a clock for its parts, a meter for its device, and the figures that a run keeps."""
