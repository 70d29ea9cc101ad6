"""The commands of `tileseek`, one module each; `inputs` and `output` are what they share."""
