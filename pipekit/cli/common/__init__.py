"""What commands share: options, what users wrote, how a training begins."""
