"""What all explorers are made of: controls, a canvas, charts, and how they follow one another."""
