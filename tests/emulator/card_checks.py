"""What PyTorch must report on the emulated card, worked out by hand.

A program of its own: it imports PyTorch once, on the stub libraries, and runs each check in
a forked child, which starts from an untouched allocator. Prints one JSON line a check.
Run as ``python card_checks.py FOLDER_OF_THE_BUILD``; pytest does so in test_card.py.
"""

# ruff: noqa: D103 - the name of each check says what must hold

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable

from dnnmem_tune.emulator.card import Card, Policies, Workspace
from dnnmem_tune.emulator.load import Convolution, load

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
A100 = Card(
    name="A100", total_bytes=42505273344, context_bytes=430 * MIB, compute_capability=(8, 0), num_sms=108,
    threads_per_sm=2048,
)  # fmt: skip
H100 = Card(
    name="H100", total_bytes=84929347584, context_bytes=520 * MIB, compute_capability=(9, 0), num_sms=132,
    threads_per_sm=2048,
)  # fmt: skip
CHECKS: dict[str, tuple[Callable[[], None], Card, dict[str, str]]] = {}


class NotInThisRelease(Exception):  # noqa: N818 - a reason, not an error
    """This release of PyTorch has not what the check is about."""


def check(card: Card = A100, **environment: str):
    """Register a check that runs on ``card``."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        CHECKS[function.__name__] = (function, card, environment)
        return function

    return register


def with_policies(card: Card, **policies) -> Card:
    """The card with policies in place of none."""
    from dataclasses import replace

    return replace(card, policies=Policies(**policies))


def equal(found: object, expected: object, what: str = "") -> None:
    """Compare, and say both values."""
    assert found == expected, f"{what}: got {found}, expected {expected}"


@check()
def requests_are_rounded_and_segments_sized():
    x = torch.zeros(1000, 1000, device="cuda")
    equal(allocated(), 4000256, "512-byte rounding")
    equal(reserved(), 20 * MIB, "a request of 1 to 10 MiB takes a segment of 20 MiB")
    y = torch.zeros(1, device="cuda")
    equal(allocated(), 4000256 + 512)
    equal(reserved(), 22 * MIB, "a small request takes a segment of 2 MiB")
    z = torch.zeros(31 * MIB // 4, device="cuda")
    equal(reserved(), 54 * MIB, "from 10 MiB on rounded up to 2 MiB")
    w = torch.zeros(11 * MIB // 4, device="cuda")
    equal(reserved(), 54 * MIB, "11 MiB come from what is left of the segment of 20 MiB")
    free, total = torch.cuda.mem_get_info()
    equal(free, total - 430 * MIB - 54 * MIB, "free is total less context and reserved")
    assert x.data_ptr() > y.data_ptr() > z.data_ptr(), "new segments lie at descending addresses"
    del w


@check(Card(name="8 GiB", total_bytes=8 * GIB, context_bytes=512 * MIB, compute_capability=(8, 0), num_sms=108,
            threads_per_sm=2048))  # fmt: skip
def memory_ends_at_the_capacity():
    keep = []
    try:
        while True:
            keep.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    equal(len(keep), 7, "blocks of 1 GiB in 7.5 GiB")
    equal(reserved(), 7 * GIB)
    keep[0] = None
    keep.append(torch.empty(GIB + GIB // 4, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.memory_stats()["num_alloc_retries"] >= 2, (
        "a cached block is given back and the request retried"
    )


@check()
def sgd_on_an_mlp_keeps_two_workspaces():
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    weights = sum(-(-x.numel() * 4 // 512) * 512 for x in model.parameters())
    x = torch.randn(256, 1024, device="cuda")
    equal(allocated(), weights + x.numel() * 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    workspace = 4096 * KIB * 2 + 16 * KIB * 8  # PyTorch's default below capability 9.0
    equal(allocated(), 2 * weights + x.numel() * 4 + 2 * workspace, "forward and backward threads have one each")


@check(H100)
def cublas_workspace_is_32_mib_on_hopper():
    a = torch.randn(512, 512, device="cuda")
    before = allocated()
    c = a @ a
    equal(allocated() - before - c.numel() * 4, 32 * MIB)


@check()
def adam_keeps_two_moments_and_foreach_copies_once():
    for options, copies in (({"fused": True}, 0), ({"foreach": True}, 1)):
        gc.collect()
        torch.cuda.empty_cache()
        weights = [nn.Parameter(torch.zeros(MIB, device="cuda")) for _ in range(8)]
        before = allocated()
        optimizer = torch.optim.Adam(weights, **options)
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        equal((allocated() - before) // MIB, 8 * 4 * 3, "gradient and two moments")
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        equal((peak_allocated() - allocated()) // MIB, 8 * 4 * copies, f"temporaries of {options}")
        del weights, optimizer, weight


@check()
def batch_norm_keeps_its_input_and_relu_its_output():
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()).cuda()
    x = torch.randn(16, 64, 64, 64, device="cuda")
    before = allocated()
    y = model(x)
    one = x.numel() * 4
    assert 2 * one <= allocated() - before < 2 * one + MIB, (allocated() - before) / one
    del y


@check()
def convolution_workspace_comes_from_the_caching_allocator():
    asked = []
    CARD.answer_convolutions(lambda each: asked.append(bytes(each)) or (64 * MIB if each.direction == 0 else 0))
    ran = []
    CARD.watch_convolutions(lambda each: ran.append((each.direction, each.rank, each.groups, each.channels_last)))
    conv = nn.Conv2d(16, 32, 3, padding=1, stride=2, bias=False).cuda()
    x = torch.randn(4, 16, 32, 32, device="cuda", requires_grad=True)
    before = allocated()
    y = conv(x)
    equal(peak_allocated() - before - y.numel() * 4, 64 * MIB)
    equal(allocated() - before, y.numel() * 4, "and is given back")
    y.sum().backward()
    equal(sorted(ran), [(0, 4, 1, 0), (1, 4, 1, 0), (2, 4, 1, 0)], "each pass ran once")
    first = Convolution.from_buffer_copy(asked[0])
    equal(list(first.input)[:4], [4, 16, 32, 32])
    equal(list(first.weight)[:4], [32, 16, 3, 3])
    equal(list(first.output)[:4], [4, 32, 16, 16])
    equal(list(first.stride)[:2], [2, 2])


@check()
def a_convolution_is_described_as_it_is():
    ran = []
    CARD.watch_convolutions(lambda each: ran.append((each.groups, each.channels_last, each.dtype)))
    x = torch.randn(8, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    nn.Conv2d(16, 16, 3, padding=1, groups=4).cuda().to(memory_format=torch.channels_last)(x)
    with torch.autocast("cuda", dtype=torch.float16):
        nn.Conv2d(16, 16, 1).cuda()(x.contiguous())
    equal(ran, [(4, 1, 0), (1, 0, 2)])


@check()
def an_engine_without_workspace_stands_in():
    CARD.answer_convolutions(lambda _each: 100_000 * MIB)
    conv = nn.Conv2d(16, 16, 3, padding=1).cuda()
    conv(torch.randn(4, 16, 32, 32, device="cuda", requires_grad=True)).sum().backward()
    assert peak_allocated() < 64 * MIB
    assert torch.cuda.memory_stats()["num_ooms"] > 0


@check()
def dropout_keeps_a_mask_and_max_pool_indices():
    x = torch.randn(8, 64, 64, 64, device="cuda", requires_grad=True)
    before = allocated()
    y = nn.functional.dropout(x, 0.5)
    equal(allocated() - before, x.numel() * 4 + x.numel(), "output and one byte of mask an element")
    before = allocated()
    z = nn.functional.max_pool2d(x, 2)
    equal(allocated() - before, z.numel() * (4 + 8), "output and int64 indices")
    del y


@check()
def grad_scaler_finds_no_infinity():
    linear = nn.Linear(512, 1000).cuda()
    optimizer = torch.optim.Adam(linear.parameters())
    scaler = torch.amp.GradScaler("cuda")
    x = torch.randn(64, 512, device="cuda")
    target = torch.randint(0, 1000, (64,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(linear(x), target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    equal(len(optimizer.state), 2, "parameters with state: the step was taken")


@check()
def attention_backends_allocate_what_they_should():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(4, 12, 1024, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    kept = {}
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION):
        torch.cuda.empty_cache()
        before = allocated()
        with sdpa_kernel(backend):
            out = nn.functional.scaled_dot_product_attention(q, q, q)
        kept[backend.name] = allocated() - before
        del out
    output, logsumexp = q.numel() * 2, 4 * 12 * 1024 * 4
    assert 0 <= kept["FLASH_ATTENTION"] - output - logsumexp <= 4096, kept
    assert 0 <= kept["EFFICIENT_ATTENTION"] - output - logsumexp <= 4096, kept
    assert kept["MATH"] >= 4 * 12 * 1024 * 1024 * 2, kept


@check(H100)
def cudnn_attention_allocates_what_its_frontend_asks():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if torch_release() < (2, 5):
        raise NotInThisRelease("needs PyTorch 2.5")
    b, h, s, d = 4, 12, 1024, 64
    q, k, v = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    one, logsumexp = b * h * s * d * 2, b * h * s * 4
    mask = torch.zeros(b, 1, s, s, device="cuda", dtype=torch.bfloat16)
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"dropout_p": 0.125}):
        case = list(options)
        before = allocated()
        torch.cuda.reset_peak_memory_stats()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = nn.functional.scaled_dot_product_attention(q, k, v, **options)
        equal(
            allocated() - before, one + logsumexp + 2 * 512, f"{case}: output, logsumexp, dropout seed and offset"
        )
        equal(peak_allocated(), allocated(), f"{case}: no workspace in forward")
        grad = torch.empty_like(out)
        before = allocated()
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        equal(peak_allocated() - before, 5 * one + logsumexp, f"{case}: dq, dk, dv, dq in float32 and row sums")
        del out, grad
        q.grad = k.grad = v.grad = None
    if torch_release() >= (2, 14):
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        assert "Cudnn" in out.grad_fn.name(), "PyTorch's own choice on capability 9.0"


@check(with_policies(H100, attention=Workspace(base_bytes=64 * MIB)))
def cudnn_attention_has_a_workspace_policy():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if torch_release() < (2, 5):
        raise NotInThisRelease("needs PyTorch 2.5")
    q = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = nn.functional.scaled_dot_product_attention(q, q, q)
    equal(peak_allocated() - allocated(), 64 * MIB, "taken in forward and given back")
    del out


@check()
def checkpointing_keeps_one_activation_fewer_a_block():
    from torch.utils.checkpoint import checkpoint

    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)]).cuda()
    x = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    blocks(x).sum().backward()
    kept = []
    for use_checkpoint in (False, True):
        torch.cuda.empty_cache()
        h = x
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=False) if use_checkpoint else block(h)
        kept.append(allocated())
        h.sum().backward()
        del h
    equal((kept[0] - kept[1]) // (4096 * 1024 * 4), 8)


@check(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", PYTORCH_ALLOC_CONF="expandable_segments:True")
def expandable_segments_grow_by_20_mib():
    x = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    equal(reserved(), 20 * MIB)
    y = torch.zeros(50 * MIB, dtype=torch.uint8, device="cuda")
    equal(reserved(), 60 * MIB)
    assert any(segment["is_expandable"] for segment in torch.cuda.memory._snapshot()["segments"])
    del x, y
    torch.cuda.empty_cache()
    equal(reserved(), 0)
    free, total = torch.cuda.mem_get_info()
    equal(total - free, 430 * MIB, "only the context is left")


@check()
def a_captured_graph_has_a_pool_of_its_own():
    linear = nn.Linear(1024, 1024).cuda()
    x = torch.randn(1024, 1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        linear(x)
    graph = torch.cuda.CUDAGraph()
    before = reserved()
    with torch.cuda.graph(graph):
        y = linear(x)
    graph.replay()
    assert reserved() > before
    del y


@check()
def lstm_weights_share_one_buffer():
    with torch.device("cuda"):
        model = nn.LSTM(650, 650, 2, dropout=0.5)
    addresses = sorted(parameter.data_ptr() for parameter in model.parameters())
    assert addresses[-1] - addresses[0] < sum(p.numel() for p in model.parameters()) * 4
    out, _ = model(torch.randn(35, 20, 650, device="cuda"))
    out.sum().backward()


@check()
def a_value_read_back_is_counted_and_zero():
    seen = []
    CARD.watch_reads(seen.append)
    x = torch.ones(3, device="cuda").sum()
    equal(x.item(), 0.0)
    equal(seen, [4])
    CARD.watch_reads(None)
    assert CARD.counters().host_reads >= 1


@check(Card(name="two", total_bytes=8 * GIB, context_bytes=0, compute_capability=(7, 5), num_sms=40,
            threads_per_sm=1024, num_cards=2))  # fmt: skip
def cards_have_memories_of_their_own():
    equal(torch.cuda.device_count(), 2)
    equal(torch.cuda.get_device_capability(1), (7, 5))
    x = torch.empty(6 * GIB, dtype=torch.uint8, device="cuda:0")
    y = torch.empty(6 * GIB, dtype=torch.uint8, device="cuda:1")
    equal((torch.cuda.mem_get_info(0)[0], torch.cuda.mem_get_info(1)[0]), (2 * GIB, 2 * GIB))
    del x, y


def torch_release() -> tuple[int, ...]:
    """Major and minor."""
    return tuple(int(number) for number in torch.__version__.split(".")[:2])


def in_child(name: str) -> dict[str, str]:
    """Run one check in a forked child."""
    function, card, environment = CHECKS[name]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = {"check": name, "outcome": "passed"}
        try:
            os.environ.update(environment)
            CARD.become(card)
            function()
        except NotInThisRelease as reason:
            outcome.update(outcome="skipped", why=str(reason))
        except BaseException as error:
            outcome.update(outcome="failed", why=f"{error!r}\n{traceback.format_exc(limit=-2)}")
        os.write(writer, json.dumps(outcome).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"check": name, "outcome": "failed", "why": f"ended with status {status}"}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    CARD = load(sys.argv[1], A100)
    import torch
    from torch import nn

    allocated, reserved = torch.cuda.memory_allocated, torch.cuda.memory_reserved
    peak_allocated = torch.cuda.max_memory_allocated
    for each in CHECKS:
        print(json.dumps(in_child(each)), flush=True)
