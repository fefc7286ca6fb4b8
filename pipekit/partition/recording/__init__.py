"""What a forward of any module does: its blocks' calls, and the operations between them."""
