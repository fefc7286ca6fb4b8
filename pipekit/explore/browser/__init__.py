"""What runs in the browser: timelines on a canvas, charts, and a setting to be copied."""
