"""What `tflaunch gpus` shows of given facts."""

from __future__ import annotations

import re

import pytest

from tests.support.gpus import FLEET, answer, gpu, page, process
from tflaunch.console.gpus_page import GpusView
from tflaunch.console.pen import ASCII
from tflaunch.planning.gpu_words import advice
from tflaunch.planning.inventory import GpuProcess
from tflaunch.survey.gpu_overview import (
    brief_name,
    look,
    short_command,
    short_name,
)
from tflaunch.text.times import age


def test_what_a_page_tells() -> None:
    shown = page(look(FLEET))
    for line in (
        r"^gpu01  1 of 4 free  3 \u00d7 H100 80GB HBM3 · driver 550\.54\.15 · CUDA 12\.4 · load 0\.0/64 · 0 of 512",
        r"^ +0  ○ free  .* 0\.0/80 GiB .* 0% +30° +70/700 W$",
        r"^ +1  ● busy  .* 70\.0/80 GiB .* 97% .* alice  +2h +10\.0G  python3 -u train\.py --lr 1$",
        r"^ +3  ◐ leased .* bob +1m +-  run trainer-0102$",
        r"^ +7  ✗ broken .* GPU is lost$",
        r"^gpu02  2 of 4 free  RTX 4090, V100, A100-SXM4-80GB",
        r"^ +0  ● busy  .* 3\.0 GiB in use by a process that is not visible there$",
        r"^ +2  ◇ MIG  .* 2 instances$",
        r"^ +2\.0  ○ free +MIG 3g\.40gb .* 0\.0/40 GiB",
        r"^ +2\.1  ● busy +MIG 1g\.10gb .* alice",
        r"^cpu\[01-02\]: no NVIDIA driver$",
        r"^! sick  NVML: Driver Not Loaded$",
        r"^✗ dead\[1-2\]  no route$",
        r"^    → ping dead1$",
        r"^waiting for slow$",
        r"^○ 1 free  ● 1 busy  ◐ 1 leased  ✗ 0 broken  of 3  H100 80GB HBM3$",
        r"^○ 3 free  ● 3 busy  ◐ 1 leased  ✗ 1 broken  of 8 on 2 hosts$",
    ):
        assert re.search(line, shown, re.MULTILINE), f"{line}\n{shown}"


@pytest.mark.parametrize("columns", [20, 30, 45, 60, 80, 100, 120, 160, 250])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    view = GpusView(columns)
    overview = look(FLEET)
    for lines in (view.page(overview), view.frame(overview, "title", 100), view.topology(overview)):
        assert max(line.cell_len for line in lines) <= columns


@pytest.mark.parametrize("columns", [60, 70, 76, 80])
def test_models_leave_room_for_who_uses_each_gpu(columns: int) -> None:
    v100 = gpu(1, "Tesla V100-SXM2-32GB", used=30, processes=(process("alice-smith"),))
    shown = page(look([answer("gpu01", gpu(0), v100)]), columns)
    assert re.search(r"^ *1 ● busy .*V100.* alice-smith +2h", shown, re.MULTILINE), shown


def test_a_narrow_pane_drops_what_matters_least() -> None:
    shown = page(look(FLEET[:1]), 45)
    assert re.search(r"^ *1 ● busy   ━+.*70/80G  97% alice  2h$", shown, re.MULTILINE), shown
    assert "train.py" not in shown
    assert "train.py" in page(look(FLEET[:1]), 80)
    mixed = page(look(FLEET[1:2]), 45)
    assert re.search(r"^ *0 ● busy   RTX 4090  3/80G   0% unseen$", mixed, re.MULTILINE), mixed
    assert re.search(r"^2\.1 ● busy   1g\.10gb   9/10G    - alice  2h$", mixed, re.MULTILINE), mixed


@pytest.mark.parametrize("rows", [3, 4, 6, 10, 15, 20, 30, 60])
def test_a_window_shows_what_fits_and_always_the_total(rows: int) -> None:
    overview = look(FLEET)
    lines = [line.plain for line in GpusView(100).frame(overview, "title", rows)]
    assert len(lines) <= rows
    assert lines[0] == "title"
    assert lines[-1].endswith("of 8 on 2 hosts")
    full = [line.plain for line in GpusView(100).page(overview)]
    if rows > len(full):
        assert lines[1:] == full
    elif rows == 10:
        assert "gpu01  ○●◐✗   1 free  3 \u00d7 H100 80GB HBM3  alice" in lines
    elif rows < 8:
        hidden = re.fullmatch(r"… ([0-9]+) more lines: .*", lines[-2])
        assert hidden
        assert int(hidden[1]) + len(lines) - 3 == 6  # 2 hosts with GPUs, 4 lines of trouble


def test_without_unicode_everything_has_another_sign() -> None:
    shown = page(look(FLEET), marks=ASCII)
    assert shown.isascii()
    for word in ("o free", "* busy", "+ leased", "x broken", "# MIG", "3 x H100"):
        assert word in shown


def test_what_comes_from_a_host_cannot_act_on_the_terminal() -> None:
    evil = GpuProcess(1, "eve\x1b[2J", "\x1b]0;title\x07run\nme \x9b31m", "compute", None, None)
    shown = page(look([answer("gpu01", gpu(0, "H100\x1b[1m", processes=(evil,)), gpu_note="\x1b[5mnote")]))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert "eve" in shown
    assert "run me" in shown


def test_a_gpu_in_mig_mode_without_instances_is_a_device_that_cannot_be_used() -> None:
    overview = look([answer("gpu01", gpu(0, mig_mode=True), gpu(1))])
    assert (overview.counts["busy"], overview.counts["free"]) == (1, 1)
    assert re.search(r"● busy .* in MIG mode without an instance$", page(overview), re.MULTILINE)
    assert "● busy" in page(overview, 80)
    assert "no MIG instance" in page(overview, 80)


def test_every_use_of_a_gpu_has_a_line_the_largest_first() -> None:
    several = (process("bob", 1, 5), process("al", 2, 50), process("x", 3, 70, kind="graphics"))
    shown = page(look([answer("gpu01", gpu(0, used=75, processes=several, ecc_errors=2))]))
    told = re.findall(r"(al|bob|x) +2h +([0-9.]+)G", shown)
    assert told == [("al", "50.0"), ("bob", "5.0"), ("x", "70.0")]
    assert "(graphics)" in shown
    assert "! 2 ECC errors" in shown
    one = "\n".join(
        line.plain
        for line in GpusView(160).page(look([answer("g", gpu(0, processes=several))]), processes=False)
    )
    assert "3\u00d7 al" in one


@pytest.mark.parametrize(
    ("name", "short", "brief"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", "RTX 4090"),
        ("Tesla V100-PCIE-16GB", "V100-PCIE-16GB", "V100"),
        ("Quadro RTX 6000", "Quadro RTX 6000", "Quadro RTX 6000"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 80GB HBM3 MIG 1g.10gb", "1g.10gb"),
        ("", "", ""),
    ],
)
def test_names_of_gpus(name: str, short: str, brief: str) -> None:
    assert (short_name(name), brief_name(name)) == (short, brief)


@pytest.mark.parametrize(
    ("command", "short"),
    [
        ("/usr/bin/python3 /home/a/train.py --data /x/y", "python3 train.py --data /x/y"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run t.py"),
        ("./a.out", "a.out"),
        ("/usr/lib/xorg/Xorg :0 -auth /run/x", "Xorg :0 -auth /run/x"),
        ("", ""),
        ("/", "/"),
    ],
)
def test_commands(command: str, short: str) -> None:
    assert short_command(command) == short


def test_ages() -> None:
    told = [age(seconds) for seconds in (-5, 0, 59.9, 60, 3599, 3600, 47 * 3600, 48 * 3600, 9e6)]
    assert told == ["0s", "0s", "59s", "1m", "59m", "1h", "47h", "2d", "104d"]


def test_what_to_do_about_a_sick_gpu_and_a_sick_driver() -> None:
    hangs = "nvmlDeviceGetUUID did not return within 8 s"
    shown = page(
        look([answer("g1", gpu(0), gpu(1, error=hangs)), answer("g2", gpu_note=f"NVML: {hangs}", driver="")])
    )
    words = " ".join(shown.split())
    assert f"→ GPU 1: {advice(hangs)}" in words
    assert f"! g2 NVML: {hangs} → {advice(hangs)}" in words
