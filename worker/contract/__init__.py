"""Penstock relies on these contracts of a sandbox, as checks that you run on your own.

Two contracts: `sandbox_contract()` for a one-shot sandbox (`worker.Sandbox`), and
`provider_contract()` for a provider of session sandboxes (`worker.lifecycle.Provider`).
Neither needs Redis or pytest.
"""

from worker.contract.check import Check, ContractBroken
from worker.contract.one_shot import dead_sandbox_contract, sandbox_contract
from worker.contract.session import provider_contract

__all__ = [
    "Check",
    "ContractBroken",
    "dead_sandbox_contract",
    "provider_contract",
    "sandbox_contract",
]
