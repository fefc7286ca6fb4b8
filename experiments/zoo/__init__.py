"""All methods that flush, side by side: closed forms, slots, simulated and emulated seconds."""
