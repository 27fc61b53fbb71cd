# XXH3, a hash of bytes with 64 bits (native/xxh3.h). Only Python calls it, so nothing is declared for other modules.
