"""`ModelConfig`, the argument and result of a model's `auto_complete_config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_FUNCTION = "auto-complete-config function for model"


class ModelConfig:
    """A model configuration that a model completes.

    A setter raises ValueError if its argument contradicts the configuration.

    Args:
        model_config: The configuration as JSON text.
    """

    __module__ = "triton_python_backend_utils"

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration itself, not a copy."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set `max_batch_size`.

        Raises:
            ValueError: The configuration has a larger value.
        """
        present = self._model_config["max_batch_size"]
        if present > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {present}, but in {_FUNCTION} "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Select the dynamic batcher; existing settings of it stay.

        Raises:
            ValueError: The configuration selects another scheduler.
        """
        for scheduler in _SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but {_FUNCTION} "
                    f"'{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: dict[str, Any]) -> None:
        """Add an input, or complete the input of that name.

        Args:
            input: A dict with the keys `name`, `data_type` and `dims`, and optionally `optional`.

        Raises:
            ValueError: A key is missing or unknown, or a value contradicts the configuration.
        """
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: dict[str, Any]) -> None:
        """Add an output, or complete the output of that name.

        Args:
            output: A dict with the keys `name`, `data_type` and `dims`.

        Raises:
            ValueError: A key is missing or unknown, or a value contradicts the configuration.
        """
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the transaction policy.

        Args:
            transaction_policy_dict: A dict with the one key `decoupled`.

        Raises:
            ValueError: There is another key, or the configuration has another value.
        """
        # Calls `keys`, as Triton does, so that other objects raise the same AttributeError.
        if any(key != "decoupled" for key in transaction_policy_dict.keys()):  # noqa: SIM118
            raise ValueError(
                f"model transaction property in {_FUNCTION} '{self._name}' "
                "contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if "decoupled" in policy and policy["decoupled"] != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model "
                f"'{self._name}', which is already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = decoupled

    @property
    def _name(self) -> str:
        name: str = self._model_config["name"]
        return name

    def _add(self, kind: str, entry: dict[str, Any], properties: tuple[str, ...]) -> None:
        self._check_properties(kind, entry, properties)
        for present in self._model_config[kind]:
            if present["name"] == entry["name"]:
                self._check_agreement(kind, present, entry)
                present.update(entry)
                return
        self._model_config[kind].append(entry)

    def _check_properties(
        self, kind: str, entry: Mapping[str, Any], properties: tuple[str, ...]
    ) -> None:
        if any(key not in properties for key in entry):
            # Checked first, as in Triton. The text contains the name, so a missing name is a
            # KeyError there as well.
            quoted = [f"'{name}'" for name in properties]
            raise ValueError(
                f"{kind} '{entry['name']}' in {_FUNCTION} '{self._name}' contains property "
                f"other than {', '.join(quoted[:-1])} and {quoted[-1]}."
            )
        if "name" not in entry:
            raise ValueError(f"{kind} in {_FUNCTION} '{self._name}' is missing 'name' property.")
        for required in ("data_type", "dims"):
            if required not in entry:
                raise ValueError(
                    f"{kind} '{entry['name']}' in {_FUNCTION} '{self._name}' "
                    f"is missing '{required}' property."
                )

    def _check_agreement(
        self, kind: str, present: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> None:
        name = entry["name"]
        if present["data_type"] not in ("TYPE_INVALID", entry["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype "
                f"{present['data_type']} for {kind} '{name}', model provides {entry['data_type']}"
            )
        if present["dims"] and present["dims"] != entry["dims"]:  # a tuple differs, as in Triton
            raise self._disagreement(name, "dims", present, entry)
        # A configuration from the server always has `optional`: False cannot be changed.
        if (
            "optional" in present
            and "optional" in entry
            and present["optional"] != entry["optional"]
        ):
            raise self._disagreement(name, "optional", present, entry)

    def _disagreement(
        self, tensor: str, key: str, present: Mapping[str, Any], entry: Mapping[str, Any]
    ) -> ValueError:
        return ValueError(
            f"model '{self._name}', tensor '{tensor}': the model expects {key} {entry[key]} "
            f"but the model configuration specifies {key} {present[key]}"
        )
