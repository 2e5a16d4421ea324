"""A run: the checked files that it reads, and the objects that it builds before its first step.

    run = Run.read(files, params)         # parameters, token files, initial weights; the same on every machine
    training = run.start(world, device)   # model, optimizers, windows and the plan, in this process

The stage train and the tools that repeat its steps share them, so that a tool cannot build another model.
"""

import dataclasses
import functools
from pathlib import Path

import torch

from lm.core.errors import IntegrityError, ParamsError
from lm.core.messages import say
from lm.core.paths import PARAMS, RUNS, repository_root
from lm.model import machine
from lm.model.config import ModelConfig
from lm.model.gemma3 import Gemma3Model
from lm.model.seen import NONE, seen_with_start
from lm.model.weights import load_initial
from lm.tokens.tokenfile import TokenFile, check_tokenizer, check_window_fits, open_tokens
from lm.tokens.windows import TokenWindows
from lm.train import checkpoints, preflight, step
from lm.train.checkpoints import Checkpoint
from lm.train.config import RunParams, TrainParams
from lm.train.fingerprint import run_fingerprint
from lm.train.ngram_embeddings import NgramEmbeddings
from lm.train.optimizers import build_optimizers
from lm.train.ranks import World
from lm.train.state import TrainingState


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """The files that a run reads, besides its parameters and the weights of train.init_from."""

    train: Path
    validation: Path
    tokenizer: Path | None  # a folder; needed for train.ngram_buckets only
    runs: Path | None = None  # where checkpoints are, if not in .runs of the repository


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """Everything that decides the bits of a run in exact numerics. `start` it once only, for it trains `initial`."""

    params: TrainParams
    config: ModelConfig
    train: TokenFile
    validation: TokenFile
    initial: Gemma3Model | None  # None: weights are drawn from train.seed
    initial_sha256: str | None
    ngrams: NgramEmbeddings | None
    runs: Path | None = None  # of RunFiles
    seen_by_start: torch.Tensor | None = NONE  # of lm.model.seen; None: unknown

    @classmethod
    def read(cls, files: RunFiles, params: RunParams, is_verified: bool = False) -> "Run":
        """Read and check the files.

        is_verified: another process has checked the token files from end to end; this process only maps them. Raise
        ParamsError, DataError or IntegrityError for files that are damaged, too short, or do not fit each other or the
        parameters.
        """
        # The token files.
        train = open_tokens(files.train, is_verified)
        validation = open_tokens(files.validation, is_verified)
        if train.meta["tokenizer"] != validation.meta["tokenizer"]:
            both = f"{files.train} and {files.validation}"
            raise IntegrityError(f"{both} were made with different tokenizers; run `dvc repro`")
        for tokens in (train, validation):
            check_window_fits(tokens, params.train.seq_len)

        # The weights that the run starts from.
        config = params.model.config(train.vocab_size)
        init_from = Path(params.train.init_from)
        tokenizer_sha256 = train.meta["tokenizer"]["sha256"]
        initial, initial_sha256 = load_initial(init_from, config, tokenizer_sha256, params.train.numerics)
        ngrams = read_ngrams(files.tokenizer, params.train.ngram_buckets, train)
        seen = NONE if initial is None else seen_with_start(init_from)
        return cls(params.train, config, train, validation, initial, initial_sha256, ngrams, files.runs, seen)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the hash that identifies the run."""
        return self._fingerprint()

    @functools.cached_property
    def length_free(self) -> str:
        """Return the hash that the run shares with runs of other lengths, which it may extend."""
        return self._fingerprint(without=("max_tokens",))

    def _fingerprint(self, without: tuple[str, ...] = ()) -> str:
        token_files = [self.train.path, self.validation.path]
        return run_fingerprint(self.params, self.config, self.initial_sha256, token_files, without)

    @property
    def folder(self) -> Path:
        """Return .runs/<fingerprint> of the main repository, even in a copy for a queued experiment."""
        return (self.runs or repository_root() / RUNS) / self.fingerprint

    def provenance(self) -> dict:
        """Return the entries of model.json that say what the model was made from."""
        return {
            "fingerprint": self.fingerprint,
            "config": dataclasses.asdict(self.config),
            "eot_id": self.train.eot_id,
            "tokenizer_sha256": self.train.meta["tokenizer"]["sha256"],
            "text": {name: self.train.meta.get(name) for name in ("source", "slice")},
            "data_sha256": {"train": self.train.meta["sha256"], "validation": self.validation.meta["sha256"]},
            "init_sha256": self.initial_sha256,
        }

    def load_checkpoint(self, world: World) -> dict | None:
        """Return the newest intact state of the run on all ranks, or None for a new run.

        A new run may begin with a state of a run of another length, which the main rank looks for.
        """
        saved = None
        if world.is_main:
            checkpoints.describe_run(self.folder, self.length_free, self.params)
            checkpoints.extend(self.folder, self.length_free, self.params)
            saved = checkpoints.load_newest_checkpoint(self.folder)
        (newest,) = world.all_reduce_max(-1 if saved is None else saved["step"])
        if newest >= 0 and not world.is_main:
            saved = checkpoints.load_checkpoint(Checkpoint(self.folder, newest), is_verified=True)
        return saved

    def start(self, world: World, device: torch.device) -> "Training":
        """Build model, optimizers and windows as they are before the first step.

        Raise EnvironmentFailure if the run does not fit into memory.
        """
        dtype = choose_dtype(self.params, device)

        # Reject a run that does not fit before it takes memory.
        plan = self.plan(world, device, dtype)
        warnings = []
        if world.is_main:
            warnings = preflight.check_memory(plan, device.type, preflight.available_bytes(world, device))

        model = self._build_model()
        model.to(device)
        optimizers = build_optimizers(model, self.params, dtype, self.ngrams)
        windows = TokenWindows(self.train.ids, self.params.seq_len, self.params.batch_size, self.params.seed)
        return Training(self, device, dtype, plan, warnings, windows, TrainingState(model, optimizers, world))

    def plan(self, world: World, device: torch.device, dtype: torch.dtype) -> preflight.Plan:
        """Return the size of the run, and the memory of one of its ranks."""
        num_rows = step.num_rows_of_rank(world, self.params)
        rows = step.micro_batch_rows(num_rows, self.params)
        return preflight.Plan(
            self.params,
            self.config,
            train_tokens=len(self.train.ids),
            micro_batch_tokens=rows * self.params.seq_len,
            device=device.type,
            dtype=dtype,
        )

    def _build_model(self) -> Gemma3Model:
        """Return the model with the given weights, or with weights drawn from the seed."""
        params = self.params
        model = self.initial
        if model is None:
            model = Gemma3Model(self.config, params.numerics)
            model.init_weights(torch.Generator().manual_seed(params.seed))
        model.document_start_id = None if params.attend_across_documents else self.train.eot_id
        if params.sampled_vocab_size is not None:
            model.sampling_weights = step.sampling_weights(self.train.ids, self.config.vocab_size)
        if params.compile:
            model.compile()
        return model


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """A run in progress: its state, which each step changes, and its constant parts."""

    run: Run
    device: torch.device
    dtype: torch.dtype
    plan: preflight.Plan
    memory_warnings: list[str]
    windows: TokenWindows
    state: TrainingState

    @property
    def has_digests(self) -> bool:
        """Return True if validations record a digest of the state.

        Fast numerics on a GPU promise no equal bits, and a digest would copy the whole state to the CPU.
        """
        return self.run.params.numerics == "exact" or self.device.type == "cpu"

    def resume(self, saved: dict | None) -> None:
        """Continue from a saved state, if there is one; record a segment if the hardware has changed.

        Raise IntegrityError if the state does not fit the run.
        """
        state = self.state
        world = self.state.world
        if saved is not None:
            try:
                state.restore(saved)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                reason = f"its newest checkpoint does not fit: {' '.join(str(error).split())}"
                raise IntegrityError(f"{self.run.folder}: {reason}; delete the folder to train from scratch") from None
            if world.is_main:
                say(f"resumed at step {state.step} from {self.run.folder}")
        numerics = self.run.params.numerics
        state.record_machine(machine.computed_on(self.device, self.dtype, numerics, world.world_size))


def read_ngrams(folder: Path | None, num_buckets: int | None, train: TokenFile) -> NgramEmbeddings | None:
    """Return the n-gram embeddings for the tokens of a training file, or None if there are no buckets."""
    if num_buckets is None:
        return None
    if folder is None:
        raise ParamsError(
            f"{PARAMS}: train.ngram_buckets is {num_buckets}; it must be null, or give the flag --tokenizer"
        )
    from lm.tokenizer.load import load_tokenizer  # slow to import, and not always needed

    tokenizer = load_tokenizer(folder)
    check_tokenizer(train, tokenizer.sha256)
    return NgramEmbeddings(tokenizer.token_texts, train.vocab_size, num_buckets)


def choose_dtype(params: TrainParams, device: torch.device) -> torch.dtype:
    """Return the dtype in which a rank computes: float32 in exact numerics."""
    if params.numerics == "exact":
        return torch.float32
    return machine.resolve_dtype(params.dtype, device)
