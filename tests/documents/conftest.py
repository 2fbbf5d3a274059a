from tests.e2e.conftest import zygote

__all__ = ["zygote"]
