"""Who goes next. Pure."""
