"""What runs in the browser: timelines on a canvas, and a setting to be copied."""
