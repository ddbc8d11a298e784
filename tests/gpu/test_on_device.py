"""What only a GPU shows belongs to an examination: graphs and streams, on some problems, always the same ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from mla_verify.examine import Examination, examine
from mla_verify.faults.captured import GATHERED, LENGTHS_OF_THE_CAPTURE, UNCAPTURED
from mla_verify.faults.streamed import NEVER_JOINED
from mla_verify.kernel import Kernel, economy_is_declared
from mla_verify.loading import open_bench
from mla_verify.on_device import Backends, looked_at
from mla_verify.tally import Tally
from mla_verify.watchdog import Watchdog
from sanitizer.graphs import FROM_A_GRAPH
from sanitizer.streams import ON_A_STREAM
from strategies.problems import DecodeProblem, Problem, UpProjectionProblem
from tests.gpu.fakes.fake_cuda_graphs import FakeCudaGraphs
from tests.gpu.fakes.fake_cuda_streams import FakeCudaStreams

DECODE: Final = DecodeProblem(
    kv_lens=(9, 3, 6, 5), q_lens=(1, 1, 1, 1), num_heads=2, kv_lora_rank=8, page_size=4, regime="gaussian"
)
UP: Final = UpProjectionProblem(num_tokens=3, num_heads=2, kv_lora_rank=8, v_head_dim=4, regime="gaussian")


def examined(kernel: Kernel, problem: Problem) -> Examination:
    """The examination of one problem as a worker with a GPU makes it, its watchdog included."""
    bench = open_bench(replace(kernel, devices=("cpu",)))
    streams = FakeCudaStreams()
    bench.backends = Backends(FakeCudaGraphs, streams)
    bench.function = Watchdog(bench.function, bench.device)
    with streams.installed():
        return examine(problem, bench)


def test_an_examination_says_what_was_captured() -> None:
    """A right kernel passes, and two notes say that streams and graphs were looked at."""
    shown = examined(GATHERED, DECODE)
    assert shown.findings == ()
    assert [note.split(":")[0] for note in shown.notes] == ["streams", "graphs"]


@pytest.mark.parametrize(
    ("kernel", "problem", "words"),
    [(LENGTHS_OF_THE_CAPTURE, DECODE, FROM_A_GRAPH), (NEVER_JOINED, UP, ON_A_STREAM)],
    ids=["graph", "stream"],
)
def test_faults_that_need_a_gpu_are_findings_of_the_examination(kernel: Kernel, problem: Problem, words: str) -> None:
    """Seen past the watchdog, which waits for the device after every call of the eager audit."""
    findings = examined(kernel, problem).findings
    assert findings
    assert all(finding.detail.startswith(words) for finding in findings)


def test_a_kernel_that_cannot_be_captured_has_a_note_and_no_finding() -> None:
    """Not checked, with the reason; the rest of the examination counts."""
    shown = examined(UNCAPTURED, DECODE)
    assert shown.findings == ()
    assert shown.notes[-1].startswith("graphs not checked: cannot be captured")
    assert not shown.spoiled


def test_the_seed_decides_which_problems_are_captured() -> None:
    """The same problem is captured again when it is shrunk or replayed; others, and invalid ones, are not."""
    assert looked_at(DECODE)
    assert not looked_at(replace(DECODE, seed=3))
    assert not looked_at(replace(UP, invalid="w_dtype_differs"))
    assert examined(LENGTHS_OF_THE_CAPTURE, replace(DECODE, seed=3)).findings == ()


def test_a_device_that_breaks_on_a_stream_is_a_survival_finding() -> None:
    """Whatever a graph or a stream does to the device, the process is given up."""

    def breaks(x: Tensor, w_uv: Tensor, out: Tensor, **_: Any) -> None:
        torch.bmm(x.transpose(0, 1), w_uv, out=out.transpose(0, 1))
        if torch.cuda.current_stream() is not default:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    bench = open_bench(Kernel(name="breaks", contract="up-projection", load=lambda: breaks))
    streams = FakeCudaStreams()
    bench.backends = Backends(FakeCudaGraphs, streams)
    with streams.installed():
        default = torch.cuda.current_stream()
        shown = examine(UP, bench)
    (finding,) = shown.findings
    assert finding.clause == "survival"
    assert "illegal memory access" in finding.detail
    assert shown.spoiled


def test_launches_are_declared_and_counted_on_a_gpu_alone() -> None:
    """Without a GPU a declaration of launches alone leaves economy unchecked, and says why."""
    kernel = replace(GATHERED, launches=3)
    assert not economy_is_declared(kernel, "cpu")
    assert economy_is_declared(kernel, "cuda:1")
    tally = Tally(kernel, "", examples=1, returned=1, elements=1)
    verdict = tally.verdicts((), cut_short=False)["economy"]
    assert (verdict.verdict, verdict.reason) == (
        "not checked",
        "the kernel declares launches alone, which are counted on a GPU",
    )
