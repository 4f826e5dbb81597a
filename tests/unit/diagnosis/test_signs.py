"""What counts as a sign in a log, and what only looks like one."""

from __future__ import annotations

import pytest

from tflaunch.diagnosis.signs import is_gpu, is_loss, is_nan, loss_in, signs_in


@pytest.mark.parametrize(
    "line",
    [
        "step 100: loss: nan",
        "loss nan",
        "loss=nan",
        "loss = nan, accuracy = 0.1",
        "{'loss': nan, 'accuracy': 0.1}",
        '{"step": 3, "loss": NaN}',
        " 1/10 ━━━━━━━ 1s 2ms/step - accuracy: 0.1 - loss: nan",
        "val_loss: nan",
        "Epoch 3 train_loss=-nan lr=0.1",
        "cost: NaN",
        "Model diverged with loss = NaN.",
        "ERROR:tensorflow:NaN loss during training.",
        "tensorflow...NanLossDuringTrainingError: NaN loss during training.",
        "loss tf.Tensor(nan, shape=(), dtype=float32)",
        "loss np.float32(nan)",
        "loss: tensor(nan, device='cuda:0')",
        "Loss is NaN, stopping training",
        "Batch 4: Invalid loss, terminating training: loss -> nan",
        "| loss | nan |",
    ],
)
def test_a_loss_that_is_no_number(line: str) -> None:
    assert is_nan(line)
    assert signs_in("step 1\n" + line)["nan"] == [line]
    assert not is_loss(line)


@pytest.mark.parametrize(
    "line",
    [
        "loss: 0.3",
        "loss took 3 nanoseconds",
        "loss: nanny",
        "cost: nancy",
        "glossary: banana",
        "loss: 0.4 grad_norm: nan",
        "step 100 loss 0.3 nan 1",
        "replacing nan in column 3",
        "nan values: 0, loss: 0.2",
        "check_nan=True loss=0.5",
        "loss_nan_count: 0",
        "NaN losses are skipped",
        "this nan",
        f"nan{' ' * 200}loss",  # only what is near counts: a line may be one array of a million NaNs
        "lossnan",
        "",
    ],
)
def test_what_only_looks_like_one(line: str) -> None:
    assert not is_nan(line)


@pytest.mark.parametrize(
    ("sign", "line"),
    [
        (
            "still_waiting",
            "I0000 00:00:1795262334.973198   20749 master.cc:278] CreateSession still waiting for response from worker:"
            " /job:ps/replica:0/task:0",
        ),
        (
            "not_initialized",
            "INFO:tensorflow:Waiting for model to be ready.  Ready_for_local_init_op:  Variables not initialized: w,"
            " global_step, ready: None",
        ),
        (
            "unavailable",
            "tensorflow.python.framework.errors_impl.UnavailableError: From /job:ps/replica:0/task:0:",
        ),
        (
            "unavailable",
            "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:2222:",
        ),
        (
            "no_gpu",
            "I0000 00:00:1795422571.530994 28546 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU"
            " will not be used.",
        ),
        (
            "no_gpu",
            "E cuda_driver.cc:265] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device",
        ),
        (
            "gpu_seen",
            "Created device /job:localhost/replica:0/task:0/device:GPU:0 with 22290 MB memory:  -> device: 0",
        ),
        (
            "resource_exhausted",
            "ResourceExhaustedError: {{function_node ...}} OOM when allocating tensor with shape",
        ),
        ("preempted", "Member /job:worker/replica:0/task:1 has received termination notice."),
        ("checkpoint_awaited", "INFO:tensorflow:Waiting for new checkpoint at /tmp/model"),
        (
            "data_end",
            "UserWarning: Your input ran out of data; interrupting training. Make sure that your dataset",
        ),
        ("data_end", "Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence"),
    ],
)
def test_lines_of_tensorflow(sign: str, line: str) -> None:
    assert signs_in(f"step 7\n{line}\nstep 8")[sign] == [line]


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("step 7 loss 0.31 accuracy 0.9", True),
        ("{'val_loss': 3e-5}", True),
        ("loss=-.5", True),
        ("loss: tf.Tensor(2.30, shape=(), dtype=float32)", True),
        ("{'loss': array(0.5, dtype=float32)}", True),
        ("cost 12", True),
        ("| loss | 0.4 |", True),
        ("loss: nan", False),
        ("loss: inf", False),
        ("loss_scale: 2.0", False),
        ("lossless 7", False),
        ("accuracy 0.9", False),
        ("loss", False),
    ],
)
def test_a_loss_that_is_a_number(line: str, is_one: bool) -> None:
    assert is_loss(line) is is_one
    assert ("loss" in signs_in(line)) is is_one


def test_a_line_of_a_trainer_that_trains_has_no_sign() -> None:
    for line in (
        "step 7 accuracy 0.9",
        "Created device /job:localhost/replica:0/task:0/device:CPU:0",
        "preempted is what I am not; waiting for a model that is ready",
        "I0000 port.cc:153] oneDNN custom operations are on.",
    ):
        assert signs_in(line) == {}
    assert not is_gpu("GPU: Created device /job:x CPU:0")


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("step 7 loss 0.25", "0.25"),
        ("step 7, loss: -1.5e-3, lr=0.1", "-1.5e-3"),
        ('{"step": 3, "loss": 12}', "12"),
        ("Loss is tensor(0.5, device=cuda)", "0.5"),
        ("loss: 0.5 - val_loss: 0.6", "0.5"),
        ("val_loss: 0.6 - loss: .5.", ".5"),
        ("loss 3 then loss 2", "2"),
        ("loss: 0.5,0.9", "0.5"),
        ("loss: 3, 7 left", "3"),
        ("loss: 1,234.5", ""),
        ("loss: -0,31", ""),
        ("val_loss: 0.6", ""),
        ("cost: 0.6", ""),
        ("loss: nan", ""),
        ("no loss at all in 3 steps", ""),
    ],
)
def test_the_number_of_the_loss(line: str, number: str) -> None:
    assert loss_in(line) == number
