"""What a job's YAML asks for: FoundationModelTrainingJob, ai.example.com/v1alpha1 (docs/manifest.md). Pure.

job.py has the frozen values, reader.py turns text into them, parallel.py expands `parallelism`, sums.py adds up GPUs.
Nothing here may import numpy, networkx or ortools: `fmctl validate` must answer at once.
"""

from fmproto.yamltext import Fault
from fmsched.manifest.job import Manifest, SumLine, Template, request, summary, work
from fmsched.manifest.reader import parse

__all__ = ["Fault", "Manifest", "SumLine", "Template", "parse", "request", "summary", "work"]
