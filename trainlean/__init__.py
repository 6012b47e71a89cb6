"""Train Lean: training models that do not fit. What the notebooks import, loaded when first used."""

import inspect
import warnings
from importlib import import_module

from trainlean.arguments import explained, explained_class
from trainlean.kernel import prepare_kernel

# torch.compile tells it in every process of Python 3.13.0, in the middle of a lesson; `trainlean doctor` tells it once.
warnings.filterwarnings("ignore", "Guards may run slower on Python 3.13.0", RuntimeWarning)

EXPORTS = {  # by the file that has them
    "reviews": ["load_reviews", "load_tokenizer", "batches", "dataset"],
    "models": [
        "small_bert",
        "small_bert_config",
        "bert_large_config",
        "model_config",
        "small_decoder",
    ],
    "setup": ["TrainingSetup"],
    "costs.runs": [
        "CATEGORIES",
        "Run",
        "load_runs",
        "summary",
        "PUBLISHED",
        "published_runs",
        "recorded_runs",
        "save_run",
        "format_bytes",
    ],
    "costs.links": [
        "Link",
        "LINKS",
        "all_reduce_seconds",
        "ddp_step_seconds",
        "local_sgd_step_seconds",
        "step_time",
        "communication_table",
    ],
    "costs.measuring": ["measure", "measure_in_turn"],
    "costs.meter": ["Meter"],
    "costs.predict": ["predict_run"],
    "recordings.loops": ["record"],
    "recordings.lives": ["record_lives"],
    "table.rows": ["CONTEXT", "ROWS", "CURVE", "find_rows", "predict_row"],
    "table.measured": ["Outcome", "measure_rows"],
    "table.shown": ["measured_table", "prediction_table", "plot_table"],
    "devices.engines": ["DeviceError", "start_devices", "stop_devices"],
    "recordings.ranks": ["RankRecorder", "record_rank"],
    "devices.lazy": ["in_fresh_process", "lazy_or_recorded"],
    "audit.same": ["same_training", "assert_same_training"],
    "audit.callback": ["AuditCallback"],
    "exercises.finding": ["find_exercise"],
    "exercises.solutions": ["answer_of"],
    "exercises.verdicts": ["judge"],
    "exercises.guesses": ["guess", "reveal"],
    "exercises.feedback": ["check", "hint"],
    "exercises.recall": ["recall"],
    "exercises.ordering": ["put_in_order"],
    "exercises.scores": ["score_training"],
    "plan.search": ["plan_training"],
    "pictures.memory": ["plot_memory"],
    "pictures.timelines": ["plot_timeline"],
    "pictures.front": ["plot_front"],
    "pictures.steps": ["plot_compare", "plot_accumulation_window"],
    "pictures.ranks": ["plot_ranks", "plot_drift"],
    "pictures.graphs": ["plot_graph", "plot_graphs_run"],
    "pictures.explorer": ["explorer"],
    "pictures.player": ["player"],
    "pictures.what_if": ["what_if"],
    "pictures.nodes": ["plot_driver_and_ring"],
    "pictures.losses": ["plot_losses", "plot_loss_against_bytes", "loss_sliders"],
    "pictures.receipts": ["plot_receipts", "plot_synchronisation", "plot_averages"],
    "pictures.diffs": ["show_diff"],
    "pictures.trades": [
        "plot_segments",
        "plot_budgets",
        "plot_checkpointed_layers",
        "plot_race",
        "plot_techniques",
        "plot_micro_batches",
    ],
    "pictures.style": ["rank_colour"],
}
_HOME = {name: file for file, names in EXPORTS.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"trainlean has no {name!r}; it offers {', '.join(__all__)}")
    value = getattr(import_module(f"trainlean.{_HOME[name]}"), name)
    if inspect.isclass(value):
        return value if issubclass(value, BaseException) else explained_class(value)
    return explained(value) if inspect.isfunction(value) else value


def __dir__():
    return __all__


def _px(line, cell=None):
    import_module("trainlean.devices.engines").px(line, cell)


def _table(frame):
    return import_module("trainlean.pictures.tables").table_html(frame)


prepare_kernel(_table, px=_px)  # %%px is known where no devices were started, too
