# All of body_write is internal to the core.
