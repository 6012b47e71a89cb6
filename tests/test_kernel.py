"""What a learner reads in a notebook where something goes wrong: one sentence, from a real kernel."""

import re
import time

import pytest
from jupyter_client.manager import start_new_kernel


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def shown(kernel, source, interrupt_after="nothing"):
    """What a cell leaves on the screen as its error, without colours."""
    manager, client = kernel
    asked, text = client.execute(source), ""
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        if message["msg_type"] == "stream" and interrupt_after in content["text"]:
            time.sleep(0.1)
            manager.interrupt_kernel()
        if message["msg_type"] == "error":
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            return text


TRAIN = """import time
from trainlean import measure
def train():
    print("begun", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "import trainlean\nget_ipython().run_cell_magic('px', '', 'x = 1')",
            "DeviceError: No devices are running: call start_devices(2) first.",
        ),
        (
            "from trainlean import measure\nmeasure(3)",
            "measure: missing a required argument: 'name'. measure takes train, name=...; `measure?` shows what it takes.",
        ),
        (
            "measure(3, name='x')",
            "measure needs a function, not int: write measure(train, ...), not measure(train(), ...). (in line 1: `measure(3, name='x')`)",
        ),
        (
            "def mine():\n    from trainlean import model_config\n    return model_config(3)\nmine()",
            "The model is one of bert-large, small, small-decoder, llama-1b, qwen-7b, not 3. (in line 3 of mine: `return model_config(3)`, called in line 4: `mine()`)",
        ),
    ],
)
def test_a_wrong_call_is_one_sentence(kernel, source, sentence):
    assert shown(kernel, source) == sentence


def test_an_interrupt_is_one_sentence_that_says_where(kernel):
    assert shown(kernel, TRAIN) == ""
    assert shown(kernel, "measure(train, name='x', progress=False)", "begun") == (
        "Interrupted in line 6 of train: `time.sleep(0.01)`, called in line 1: `measure(train, name='x', progress=False)`."
    )


def test_an_error_of_the_learners_keeps_its_traceback(kernel):
    text = shown(kernel, "def wrong():\n    return [][0]\nmeasure(wrong, name='x')")
    assert "IndexError: list index out of range" in text and "return [][0]" in text


def test_a_table_has_no_numbers_of_rows(kernel):
    source = "import pandas\nprint(get_ipython().display_formatter.format(pandas.DataFrame({'a': ['x']}))[0])"
    _, client = kernel
    client.execute_interactive(source, output_hook=(said := []).append, timeout=60)
    [text] = [m["content"]["text"] for m in said if m["msg_type"] == "stream"]
    assert "<td>x</td>" in text and "<th>0</th>" not in text
