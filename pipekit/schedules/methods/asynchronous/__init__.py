"""Methods that never flush: passes read weights of earlier updates."""
