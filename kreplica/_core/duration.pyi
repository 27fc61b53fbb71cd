class Duration:
    count: int
    total_ms: float
    max_ms: float
    @property
    def mean_ms(self) -> float: ...
    def update(self, took_ms: float) -> None: ...
