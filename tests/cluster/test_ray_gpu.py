"""Two workers on one GPU: `pytest -m gpu tests/cluster/test_ray_gpu.py`, with Ray and a GPU, in less than a minute."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from skillmix.calls import GenerateKey, Reply
from skillmix.cluster.devices import DeviceShare
from skillmix.cluster.ray_workers import ray_workers
from skillmix.models.local.gpu_share import claim_share, gpu_memory
from skillmix.runs.leases.owner import LeaseOwner
from skillmix.runs.run import open_run
from skillmix.steps.run import run_experiment
from tests.models.tiny_checkpoint import write_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


def checkpoint(folder: Path) -> Path:
    """A model whose heads have the size that kernels are made for."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    write_checkpoint(folder)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2}
    torch.manual_seed(1)
    config = LlamaConfig(**sizes, vocab_size=10, num_key_value_heads=1, head_dim=64, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def experiment(folder: Path, name: str, model: Path) -> Path:
    document = {
        "name": name,
        "catalog": "verifiable",
        "workers": {"gpus": 0.5},
        "students": {"s": {"model": f"local:{model}", "max_tokens": 24}},
        "graders": {"rules": {"model": "rules:"}},
        "steps": [
            {
                "name": "e",
                "stage": "evaluate",
                "students": ["s"],
                "graders": ["rules"],
                "settings": ["all"],
                "k": [1, 2],
                "combinations": 30,
                "generations": 2,
            }
        ],
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def calls(name: str) -> dict[Any, Any]:
    with open_run(name).read() as journal:
        return {call.key: (call.request_hash, call.outcome) for call in journal.calls("generate")}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_two_workers_write_what_one_process_writes(
    device: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKILLMIX_DEVICE", device)
    model = checkpoint(in_folder / "model")
    took_part: Counter[str] = Counter()
    store = LeaseOwner._store

    def noted(self: LeaseOwner, worker: str, letter: Any) -> None:
        took_part[worker] += len(letter.tries)
        store(self, worker, letter)

    monkeypatch.setattr(LeaseOwner, "_store", noted)
    alone = run_experiment(experiment(in_folder, "alone", model))
    lent = run_experiment(experiment(in_folder, "lent", model), open_workers=ray_workers)

    assert alone.is_complete and lent.is_complete
    first, second = calls("alone"), calls("lent")
    assert first.keys() == second.keys() and len(first) == 2 * 2 * 2 * 30
    assert took_part.total() == len(first)
    if device == "cpu":
        assert first == second, "on a CPU a text does not depend on its batch"
        return
    assert len(took_part) == 2, "each half of the GPU has a worker"
    assert all(isinstance(outcome, Reply) for _, outcome in second.values())
    opening = [key for key in first if isinstance(key, GenerateKey) and key.turn == 1]
    assert all(first[key][0] == second[key][0] for key in opening), "the requests are the same"
    same = sum(first[key] == second[key] for key in opening)
    with capsys.disabled():
        sys.stderr.write(
            f"\n{same} of {len(opening)} first replies are equal on the GPU; by worker: {dict(took_part)}\n"
        )


class HalfUser:
    """Takes memory of its share of a GPU."""

    def __init__(self) -> None:
        DeviceShare(0.5).claim()
        claim_share()
        self._held: list[Any] = []

    def take(self, share: float) -> bool:
        """Take a share of the whole GPU; False if that is refused."""
        import torch

        size = int(share * torch.cuda.mem_get_info()[1])
        try:
            self._held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return False
        return True

    def free_share(self) -> float:
        """What is left of the whole GPU for this process."""
        import torch

        return float(gpu_memory()[0] / torch.cuda.mem_get_info()[1])


def test_each_of_two_workers_keeps_to_half_of_the_memory() -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not find this file
    with ray_workers() as workers:
        workers._join()
        users = [ray.remote(HalfUser).options(num_gpus=0.5).remote() for _ in range(2)]

        assert all(0.4 < share < 0.5 for share in ray.get([user.free_share.remote() for user in users]))
        assert ray.get([user.take.remote(0.4) for user in users]) == [True, True]
        assert all(share < 0.1 for share in ray.get([user.free_share.remote() for user in users]))
        assert ray.get([user.take.remote(0.15) for user in users]) == [False, False]
        for user in users:
            ray.kill(user)
