"""How fast a training job would run on a placement, from sizes, degrees, GPUs and links alone. Pure: values in, values out.

`training_of` turns what a manifest says into a Training, `predict` gives the time of one step with every part of it named,
`compare` orders several placements by when they would finish. What the model leaves out is in docs/predict.md.

sizes.py     what a model is: parameters and FLOPs per token; models.toml is the catalogue
jobs.py      a Training: model, degrees, batch, precision; and how a job's groups become degrees
links.py     the weakest link of a communicating group
collectives.py  α-β costs of the collectives over such a group
groups.py    which ranks talk to which: TP, CP, EP, PP and DP groups of a mesh
step.py      one training step
"""

from fmsched.predict.compare import Choice, compare
from fmsched.predict.jobs import Degrees, Overlap, Training, training_of
from fmsched.predict.report import choices_json, predicted_json
from fmsched.predict.sizes import Model, Unpredicted, known_models, model_of
from fmsched.predict.step import GroupLink, Predicted, predict

__all__ = [
    "Choice",
    "Degrees",
    "GroupLink",
    "Model",
    "Overlap",
    "Predicted",
    "Training",
    "Unpredicted",
    "choices_json",
    "compare",
    "known_models",
    "model_of",
    "predict",
    "predicted_json",
    "training_of",
]
