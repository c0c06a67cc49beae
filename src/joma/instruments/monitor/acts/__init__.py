"""What a monitor does at an alarm, where it was told to: clip, lower a rate, go back."""
