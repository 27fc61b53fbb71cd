# All of body_write is for the core.
