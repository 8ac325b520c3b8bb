"""Client-side validation of labels."""

import re
from typing import Dict, Optional

from .models import AdditionalPodMetadata

LABEL_NAME_MAX_LENGTH = 63
LABEL_PREFIX_MAX_LENGTH = 253
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def validate_label_name(name: str, context: str) -> None:
    """Checks a label's name or value."""
    if len(name) > LABEL_NAME_MAX_LENGTH:
        raise ValueError(f"Label {context} '{name}' exceeds max length of {LABEL_NAME_MAX_LENGTH} characters.")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"Label {context} '{name}' contains invalid characters: letters, digits, '-', '_' and '.' are allowed, the first and last being a letter or digit."
        )


def validate_labels(labels: Dict[str, str]) -> None:
    """Checks label keys, with their optional prefix, and values."""
    for key, value in labels.items():
        if not key:
            raise ValueError("Label key cannot be empty.")
        prefix, slash, name = key.rpartition("/")
        if slash and (not prefix or len(prefix) > LABEL_PREFIX_MAX_LENGTH or not _PREFIX.fullmatch(prefix)):
            raise ValueError(f"Label key prefix '{prefix}' must be a valid DNS subdomain.")
        if not name:
            raise ValueError(f"Label key '{key}' has an empty name after prefix.")
        validate_label_name(name, f"key '{key}'")
        if value:
            validate_label_name(value, f"value '{value}' for key '{key}'")


def build_pod_metadata(
    pod_labels: Optional[Dict[str, str]], pod_annotations: Optional[Dict[str, str]]
) -> Optional[AdditionalPodMetadata]:
    """The value of `spec.additionalPodMetadata`; None when it would be empty."""
    if pod_labels:
        validate_labels(pod_labels)
    if not pod_labels and not pod_annotations:
        return None
    return AdditionalPodMetadata(labels=pod_labels or None, annotations=pod_annotations or None)
