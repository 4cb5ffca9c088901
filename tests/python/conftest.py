import luna  # registers the ops torch.ops.luna.*
import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers_each_time():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def pytest_report_header():
    library = luna._library._find()
    return f"luna {luna.__version__}, torch {torch.__version__}, {library}"
