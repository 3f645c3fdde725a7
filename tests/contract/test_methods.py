"""Every registered method keeps the contract, on every kind of network."""

import pytest

from slomofast import list_methods
from slomofast.testing import CHECKS, NETS


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", list_methods())
def test_contract(method: str, check: str, net: str) -> None:
    CHECKS[check](method, net)
