"""``whamming encoder``, and the options of ``create`` and ``import`` for indexes that take vectors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final, get_args

from whamming.cli.output import add_overwrite, check_new, counted, note, say, say_json
from whamming.cli.parser import Commands, FailureError, UsageError, add_json, whole
from whamming.cli.target import AnyDatabase, AnyIndex, add_target, find_index, no_such_index, opened
from whamming.storage import (
    Encoder,
    KeptVectors,
    Kind,
    Metric,
    NotFoundError,
    fit,
    load_encoder,
    read_vectors,
)

SAMPLE: Final = 20_000
"""Default number of vectors to fit an encoder on."""

TEXT = """\
An encoder turns vectors into codes. Any index created from the file, here or elsewhere, computes the same codes as this
one. In Python, whamming.load_encoder reads the file."""

EXAMPLE = """\
whamming encoder docs docs.encoder
whamming create more --encoder-file docs.encoder --keep-vectors float16"""


def add(commands: Commands) -> None:
    parser = commands("encoder", export_encoder, "write an index's encoder to a file", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="an index with an encoder")
    parser.add_argument("file", metavar="FILE", help="the file to write")
    add_overwrite(parser)
    add_json(parser)
    add_target(parser)


def export_encoder(args: argparse.Namespace) -> None:
    check_new(args.file, args.overwrite)
    with opened(args) as database:
        index = find_index(database, args.name)
        encoder = index.encoder
    if encoder is None:
        raise FailureError(f"index {args.name} has no encoder; it stores codes that were computed elsewhere")
    encoder.save(args.file)
    if args.json:
        about = {"bits": encoder.bits, "dim": encoder.dim, "encoder": encoder.fingerprint}
        say_json({"name": args.name, "file": args.file, **about, **encoder_values(encoder)})
    else:
        say(f"{args.name}: {encoder_text(encoder)}, in {args.file}")


# -- describing an encoder ---------------------------------------------------------------------------------------------


def encoder_text(encoder: Encoder) -> str:
    """Describe an encoder in one line."""
    centred = "centred" if encoder.centred else "not centred"
    samples = encoder.training.samples
    learned = f"fitted on {counted(samples, 'sample')}" if samples else "not fitted"
    return f"{encoder.kind} from {counted(encoder.dim, 'component')} to {encoder.bits} bits, {centred}, {learned}"


def encoder_values(encoder: Encoder) -> dict[str, Any]:
    """Return the facts about an encoder that are not in the index's settings."""
    training = encoder.training
    values = {"encoder_kind": encoder.kind, "centred": encoder.centred, "samples": training.samples}
    return {**values, "rounds": training.rounds, "error": training.errors[-1]} if training.errors else values


def _training_text(encoder: Encoder) -> str:
    training = encoder.training
    if not training.errors:
        return ""
    fell = f"error {training.errors[0]:.4f} -> {training.errors[-1]:.4f} in {counted(training.rounds, 'round')}"
    return f"; {fell}" + ("" if training.converged else ", not converged")


# -- options -----------------------------------------------------------------------------------------------------------


def add_encoder(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``create`` for an index that takes vectors."""
    group = parser.add_argument_group("options for an index that takes vectors")
    either = group.add_mutually_exclusive_group()
    text = """\
how to turn vectors into codes. sign: one bit per component, 1 if it is greater than 0. lsh: signs of the projections
onto --bits random directions. itq: learned from the data, see whamming import --help"""
    either.add_argument("--encoder", choices=get_args(Kind), help=text)
    text = "use an encoder that 'whamming encoder' wrote"
    either.add_argument("--encoder-file", metavar="FILE", help=text)
    group.add_argument("--dim", metavar="D", type=whole(1), help="components per vector; required with --encoder")
    _add_shared(group)


def add_fitting(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import`` that create an index for vectors."""
    group = parser.add_argument_group("options for vectors")
    either = group.add_mutually_exclusive_group()
    text = """\
create the index if it does not exist, with an encoder fitted on a sample of FILE. itq: directions learned from the
sample, at most one bit per component. lsh: random directions, any number of bits. sign: one bit per component"""
    either.add_argument("--encoder", choices=get_args(Kind), help=text)
    text = "FILE holds codes that the index's encoder computed, not vectors"
    either.add_argument("--codes", action="store_true", help=text)
    text = "length of the codes, 1 to 4096; required with lsh and itq (default with sign: one bit per component)"
    group.add_argument("--bits", metavar="N", type=whole(1, 4096), help=text)
    text = f"number of vectors to fit the encoder on, chosen at random (default {SAMPLE:,})"
    group.add_argument("--sample", metavar="N", type=whole(1), help=text)
    _add_shared(group)


def _add_shared(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", metavar="S", type=whole(0), help="random seed (default 0)")
    text = "also store the vectors, in this precision, so that search --rerank can use them"
    group.add_argument("--keep-vectors", choices=get_args(KeptVectors), help=text)
    text = "distance that --rerank ranks by (default l2: Euclidean distance)"
    group.add_argument("--metric", choices=get_args(Metric), help=text)


def create_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``create_index`` that correspond to the options of ``create``."""
    encoder: Kind | Encoder | None = args.encoder
    if args.encoder_file is not None:
        encoder = load_encoder(args.encoder_file)
    elif encoder == "itq":
        raise UsageError(
            "--encoder itq has to be fitted on vectors; to create the index from a file of vectors: "
            f"whamming import {args.name} FILE --encoder itq --bits N"
        )
    elif encoder is None and args.bits is None:
        raise UsageError("--bits is required unless an --encoder is given; see: whamming create --help")
    elif encoder is not None and args.dim is None:
        raise UsageError(f"--encoder {encoder} requires --dim, the number of components per vector")
    elif encoder == "lsh" and args.bits is None:
        raise UsageError("--encoder lsh requires --bits, the length of the codes")
    elif encoder == "sign" and (args.bits or 0) > args.dim:
        raise UsageError(
            f"--bits {args.bits} is too many for --encoder sign; with --dim {args.dim} it is at most {args.dim}"
        )
    _check_unused(args, ("dim", "seed", "keep_vectors", "metric") if encoder is None else (), "requires an --encoder")
    if args.encoder_file is not None:
        _check_unused(args, ("bits", "dim", "seed"), "cannot be used with --encoder-file, which sets it; leave it out")
    _check_metric(args)
    options = {"keep_vectors": args.keep_vectors, "metric": args.metric or "l2"}
    return {"bits": args.bits, "encoder": encoder, "dim": args.dim, "seed": args.seed or 0, **options}


def _check_unused(args: argparse.Namespace, options: Sequence[str], reason: str) -> None:
    """Fail if one of the options was given."""
    for option in options:
        if getattr(args, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} {reason}")


def _check_metric(args: argparse.Namespace) -> None:
    if args.metric is not None and args.keep_vectors is None:
        raise UsageError("--metric requires --keep-vectors; it is the distance between kept vectors")


def find_or_create_index(database: AnyDatabase, args: argparse.Namespace) -> AnyIndex:
    """Return the index that ``import`` writes to. With ``--encoder``, create it if it does not exist."""
    if args.encoder is None:
        _check_unused(
            args,
            ("bits", "sample", "seed", "keep_vectors", "metric"),
            "requires --encoder; it applies only when import creates the index",
        )
    try:
        index = database.index(args.name)
    except NotFoundError as error:
        if args.encoder is None:
            raise no_such_index(database, args.name) from error
        return _create_index(database, args)
    if args.encoder is not None:
        _check_same(index, args)
    return index


def _create_index(database: AnyDatabase, args: argparse.Namespace) -> AnyIndex:
    if args.bits is None and args.encoder != "sign":
        raise UsageError(f"--encoder {args.encoder} requires --bits, the length of the codes")
    _check_metric(args)
    file = read_vectors(args.file)
    if args.encoder != "lsh" and args.bits is not None and args.bits > file.dim:
        raise UsageError(
            f"--bits {args.bits} is too many for --encoder {args.encoder}; vectors of {file.dim} components allow at "
            f"most {file.dim}; use --encoder lsh for more"
        )
    seed = args.seed or 0
    sample = file.sample(args.sample or SAMPLE, seed)
    encoder = fit(args.encoder, sample, bits=args.bits, seed=seed)
    index = database.create_index(
        args.name, encoder=encoder, keep_vectors=args.keep_vectors, metric=args.metric or "l2"
    )
    note(f"created index {args.name}: {encoder_text(encoder)} of {len(file):,}{_training_text(encoder)}")
    return index


def _check_same(index: AnyIndex, args: argparse.Namespace) -> None:
    """Fail if an existing index differs from what the options ask for."""
    encoder, settings = index.encoder, index.settings
    existing = {"encoder": encoder and encoder.kind, "bits": settings.bits, "keep_vectors": settings.keep_vectors}
    for name, value in {**existing, "metric": settings.metric}.items():
        asked = getattr(args, name)
        if asked not in (None, value):
            option = f"--{name.replace('_', '-')}"
            raise FailureError(
                f"index {args.name} already exists with {name.replace('_', ' ')} {value or 'none'}, not {asked}; "
                f"leave {option} out, or import into another index"
            )
