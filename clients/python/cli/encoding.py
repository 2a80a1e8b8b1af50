"""Indexes that take vectors: the options that give one an encoder, and ``whamming encoder``."""

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
"""Vectors that an encoder is fitted on."""

TEXT = """\
The file holds what the index makes codes and costs of vectors with. An index that is made from it, here or elsewhere,
makes the same codes; whamming.storage.load_encoder reads it in Python."""

EXAMPLE = """\
whamming encoder docs docs.encoder
whamming create more --encoder-file docs.encoder --keep-vectors float16"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands("encoder", export_encoder, "write an index's encoder to a file", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="an index that has an encoder")
    parser.add_argument("file", metavar="FILE", help="a file to write")
    add_overwrite(parser)
    add_json(parser)
    add_target(parser)


def export_encoder(args: argparse.Namespace) -> None:
    """Write an encoder to a file."""
    check_new(args.file, args.overwrite)
    with opened(args) as database:
        index = find_index(database, args.name)
        encoder = index.encoder
    if encoder is None:
        raise FailureError(f"index {args.name} has no encoder: its codes are made elsewhere")
    encoder.save(args.file)
    if args.json:
        about = {"bits": encoder.bits, "dim": encoder.dim, "encoder": encoder.fingerprint}
        say_json({"name": args.name, "file": args.file, **about, **encoder_values(encoder)})
    else:
        say(f"{args.name}: {encoder_text(encoder)}, in {args.file}")


# -- an encoder for people, and for programs ---------------------------------------------------------------------------


def encoder_text(encoder: Encoder) -> str:
    """Describe an encoder in a line."""
    centred = "centred" if encoder.centred else "not centred"
    samples = encoder.training.samples
    learned = f"fitted on {counted(samples, 'sample')}" if samples else "without a sample"
    return f"{encoder.kind} from {counted(encoder.dim, 'component')} to {encoder.bits} bits, {centred}, {learned}"


def encoder_values(encoder: Encoder) -> dict[str, Any]:
    """Return what an index's settings do not say of its encoder."""
    training = encoder.training
    values = {"encoder_kind": encoder.kind, "centred": encoder.centred, "samples": training.samples}
    return {**values, "rounds": training.rounds, "error": training.errors[-1]} if training.errors else values


def _training_text(encoder: Encoder) -> str:
    training = encoder.training
    if not training.errors:
        return ""
    fell = f"error {training.errors[0]:.4f}, after {counted(training.rounds, 'round')} {training.errors[-1]:.4f}"
    return f"; {fell}" + ("" if training.converged else ", still falling")


# -- options -----------------------------------------------------------------------------------------------------------


def add_encoder(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``create`` for an index that takes vectors."""
    group = parser.add_argument_group("an index that takes vectors and makes the codes itself")
    either = group.add_mutually_exclusive_group()
    text = """\
sign: a bit per component, whether it is above 0; lsh: signs along --bits random directions; itq learns its directions:
see whamming import"""
    either.add_argument("--encoder", choices=get_args(Kind), help=text)
    text = "an encoder that 'whamming encoder' wrote, from an index that has it"
    either.add_argument("--encoder-file", metavar="FILE", help=text)
    group.add_argument("--dim", metavar="D", type=whole(1), help="components of a vector, with --encoder")
    _add_shared(group)


def add_fitting(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``import`` to make an index that takes vectors."""
    group = parser.add_argument_group("vectors, and an index for them")
    either = group.add_mutually_exclusive_group()
    text = """\
if there is no such index, make one, its encoder fitted on a sample of FILE. itq learns the directions in
which vectors differ, at most as many as they have components; lsh takes any number of random ones; sign has a bit per
component"""
    either.add_argument("--encoder", choices=get_args(Kind), help=text)
    text = "FILE holds codes, as the index's encoder makes them, not vectors"
    either.add_argument("--codes", action="store_true", help=text)
    text = "length of the codes (default, of sign only: a bit per component)"
    group.add_argument("--bits", metavar="N", type=whole(1, 4096), help=text)
    text = f"vectors, chosen at random, to fit the encoder on (default {SAMPLE:,})"
    group.add_argument("--sample", metavar="N", type=whole(1), help=text)
    _add_shared(group)


def _add_shared(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", metavar="S", type=whole(0), help="of what is chosen at random (default 0)")
    text = "keep the vectors, rounded to this, so that search --rerank can rank hits by them"
    group.add_argument("--keep-vectors", choices=get_args(KeptVectors), help=text)
    text = "by which --rerank ranks them (default l2, Euclidean distance)"
    group.add_argument("--metric", choices=get_args(Metric), help=text)


def creating(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``create_index`` that the options of ``create`` stand for."""
    encoder: Kind | Encoder | None = args.encoder
    if args.encoder_file is not None:
        encoder = load_encoder(args.encoder_file)
    elif encoder == "itq":
        raise UsageError(
            f"--encoder itq learns from vectors: whamming import {args.name} FILE --encoder itq makes the index of them"
        )
    elif encoder is None and args.bits is None:
        raise UsageError("--bits or an --encoder is missing: say how long codes are; see: whamming create --help")
    elif encoder is not None and args.dim is None:
        raise UsageError(f"--encoder {encoder} without --dim: say how many components vectors have")
    elif encoder == "lsh" and args.bits is None:
        raise UsageError("--encoder lsh without --bits: say how long codes are to be")
    elif encoder == "sign" and (args.bits or 0) > args.dim:
        raise UsageError(f"--bits {args.bits} with --encoder sign: --dim {args.dim} gives at most {args.dim}")
    _check_alone(args, ("dim", "seed", "keep_vectors", "metric") if encoder is None else ())
    if args.encoder_file is not None:
        _check_alone(args, ("bits", "dim", "seed"), "with --encoder-file: the file has it")
    if args.metric is not None and args.keep_vectors is None:
        raise UsageError("--metric without --keep-vectors: it is for ranking hits by vectors that are kept")
    options = {"keep_vectors": args.keep_vectors, "metric": args.metric or "l2"}
    return {"bits": args.bits, "encoder": encoder, "dim": args.dim, "seed": args.seed or 0, **options}


def _check_alone(args: argparse.Namespace, options: Sequence[str], text: str = "without an --encoder") -> None:
    """Refuse options that mean nothing here."""
    for option in options:
        if getattr(args, option) is not None:
            raise UsageError(f"--{option.replace('_', '-')} {text}; leave it out")


def found_or_made(database: AnyDatabase, args: argparse.Namespace) -> AnyIndex:
    """Return the index that ``import`` writes to; one that is missing is made if there is an ``--encoder``."""
    if args.encoder is None:
        _check_alone(
            args,
            ("bits", "sample", "seed", "keep_vectors", "metric"),
            "without --encoder: it is for an index that import is to make",
        )
    try:
        index = database.index(args.name)
    except NotFoundError as error:
        if args.encoder is None:
            raise no_such_index(database, args.name) from error
        return _made(database, args)
    if args.encoder is not None:
        _check_same(index, args)
    return index


def _made(database: AnyDatabase, args: argparse.Namespace) -> AnyIndex:
    if args.bits is None and args.encoder != "sign":
        raise UsageError(f"--encoder {args.encoder} without --bits: say how long codes are to be")
    if args.metric is not None and args.keep_vectors is None:
        raise UsageError("--metric without --keep-vectors: it is for ranking hits by vectors that are kept")
    file = read_vectors(args.file)
    if args.encoder != "lsh" and args.bits is not None and args.bits > file.dim:
        raise UsageError(
            f"--bits {args.bits} with --encoder {args.encoder}: vectors of {file.dim} components give at most "
            f"{file.dim}; use --encoder lsh for more"
        )
    seed = args.seed or 0
    sample = file.sample(args.sample or SAMPLE, seed)
    encoder = fit(args.encoder, sample, bits=args.bits, seed=seed)
    index = database.create_index(
        args.name, encoder=encoder, keep_vectors=args.keep_vectors, metric=args.metric or "l2"
    )
    note(f"made index {args.name}: {encoder_text(encoder)} of {len(file):,}{_training_text(encoder)}")
    return index


def _check_same(index: AnyIndex, args: argparse.Namespace) -> None:
    """Refuse an index that is not what the options would make."""
    encoder, settings = index.encoder, index.settings
    held = {"encoder": encoder and encoder.kind, "bits": settings.bits, "keep_vectors": settings.keep_vectors}
    for name, value in {**held, "metric": settings.metric}.items():
        asked = getattr(args, name)
        if asked not in (None, value):
            raise FailureError(
                f"index {args.name} exists with {name.replace('_', ' ')} {value or 'none'}, not {asked}: leave "
                f"--{name.replace('_', '-')} out, or choose another name"
            )
