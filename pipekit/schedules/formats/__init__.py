"""Tables as text and as files: read and written."""
