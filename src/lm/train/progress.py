"""Print the progress of a run, and its result."""

import sys
import time

from tqdm import tqdm

from lm.core.messages import say
from lm.exact.threads import ThreadTuner
from lm.model.machine import describe_device
from lm.train import preflight
from lm.train.config import TrainParams
from lm.train.preflight import Plan
from lm.train.ranks import World
from lm.train.run import Training
from lm.train.state import TrainingState


def print_plan(training: Training, threads: ThreadTuner) -> None:
    """Print the size of the run and warnings, on the main rank."""
    run = training.run
    world = training.state.world
    if not world.is_main:
        return
    device = describe_device(training.device, threads.threads)
    dtype = str(training.dtype).removeprefix("torch.")
    say("\n".join([f"device       {device}", f"dtype        {dtype}", *training.plan.lines()]))
    if world.world_size > 1:
        say(f"processes    {world.world_size}, {world.local_world_size} on this host")
    messages = preflight.warnings(training.plan, run.params, run.config)
    for message in messages + training.memory_warnings + threads.warnings():
        say(f"warning: {message}", file=sys.stderr)


def shows_bar(world: World) -> bool:
    """Return True if this process shows a bar: it is the main rank, and stderr is a terminal."""
    return world.is_main and sys.stderr.isatty()


class Progress(tqdm):
    """Show a run on the main rank: a bar on a terminal; elsewhere one line on stdout per validation."""

    def __init__(self, plan: Plan, state: TrainingState, params: TrainParams):
        super().__init__(
            total=plan.max_tokens,
            initial=state.step * params.batch_tokens,
            unit="tok",
            unit_scale=True,
            desc="train",
            disable=not shows_bar(state.world),
        )
        self.plan = plan
        self.state = state
        self.started = time.monotonic()
        self.first_step = state.step
        self.rows_shown = len(state.history.train)

    def show_validation(self) -> None:
        """Show the newest losses, the speed since the start of this process, and the time left."""
        steps = self.state.step - self.first_step
        seconds = time.monotonic() - self.started
        step, tokens, val_loss = self.state.history.validation[-1]
        train_rows = self.state.history.train
        if not self.disable:
            self.set_postfix(val_loss=f"{val_loss:.3f}")
        elif self.state.world.is_main:
            line = f"step {step:,} of {self.plan.max_steps:,}, {tokens:,} tokens"
            line += f", training loss {train_rows[-1][3]:.4f}" if len(train_rows) > self.rows_shown else ""
            line += f", validation loss {val_loss:.4f}"
            if steps:
                speed = steps * self.plan.max_tokens / self.plan.max_steps / seconds
                line += f", {speed:,.0f} tokens/s, {(self.plan.max_tokens - tokens) / speed / 60:.1f} min left"
            say(line)
            self.rows_shown = len(train_rows)


def print_end(state: TrainingState) -> None:
    """Print the time of a finished run by activity, and its best validation loss."""
    say("minutes      " + ", ".join(f"{seconds / 60:.1f} {activity}" for activity, seconds in state.seconds.items()))
    say(f"best validation loss {state.best_loss:.4f} nats/token at step {state.best_step}")
