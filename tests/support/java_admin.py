"""Pulsar 5's own Java admin client in a separate process, with requests in lines.

`python -m tests.support.java_admin URL TOKEN JARS`. Each line of input is a JSON object with `call`, a signature such as
`splitSegment(String,long)`, `arguments`, and `of`: `scalableTopics` or `namespaces`. Each line of output is `{"result": …}`, `{"refused":
status, "reason": …}` or `{"failed": …}`. The call `*` lists the signatures. A process can start a JVM only once, hence the separate
process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jpype

from controller.devstack.java import java_home


class JavaAdmin:
    """The client, and its methods by signature."""

    def __init__(self, url: str, token: str) -> None:
        self._java, org = jpype.JPackage("java"), jpype.JPackage("org")
        api = org.apache.pulsar.client.api.AuthenticationFactory
        builder = org.apache.pulsar.client.admin.PulsarAdmin.builder()
        self._admin = builder.serviceHttpUrl(url).authentication(api.token(token)).build()
        self._data = org.apache.pulsar.common.policies.data
        self._mapper = org.apache.pulsar.common.util.ObjectMapperFactory.getMapper()
        interfaces = {
            "scalableTopics": org.apache.pulsar.client.admin.ScalableTopics,
            "namespaces": org.apache.pulsar.client.admin.Namespaces,
        }
        self._methods = {
            name: {signature(method): method for method in interface.class_.getMethods()}
            for name, interface in interfaces.items()
        }

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Perform one call and return its result or refusal."""
        methods = self._methods[question["of"]]
        if question["call"] == "*":
            return {"result": sorted(methods)}
        method = methods[question["call"]]
        kinds = [parameter.getSimpleName() for parameter in method.getParameterTypes()]
        java_arguments = [
            self._java_of(kind, parameter)
            for kind, parameter in zip(kinds, question["arguments"], strict=True)
        ]
        client = getattr(self._admin, question["of"])()
        try:
            result = getattr(client, str(method.getName()))(*java_arguments)
            if method.getReturnType().getSimpleName() == "CompletableFuture":
                result = result.get()
        except self._java.lang.Exception as error:
            return self._refusal(error)
        return {"result": self._python_of(result)}

    def _java_of(self, kind: str, value: Any) -> Any:
        if kind == "AutoScalePolicyOverride":
            return (
                self._mapper.reader()
                .forType(self._data.AutoScalePolicyOverride.class_)
                .readValue(json.dumps(value))
            )
        if kind == "ScalableSubscriptionType":
            return self._data.ScalableSubscriptionType.valueOf(value)
        if kind == "Map":
            return self._java.util.HashMap(value)
        if kind == "List":
            return self._java.util.ArrayList(value)
        primitive = {"int": jpype.JInt, "long": jpype.JLong, "boolean": jpype.JBoolean}.get(kind)
        return value if primitive is None else primitive(value)

    def _python_of(self, java_value: Any) -> Any:
        return (
            None
            if java_value is None
            else json.loads(str(self._mapper.writer().writeValueAsString(java_value)))
        )

    def _refusal(self, error: Any) -> dict[str, Any]:
        while error is not None and not hasattr(error, "getStatusCode"):
            error = error.getCause()
        if error is None:
            return {"failed": "no answer of the server"}
        return {
            "refused": int(error.getStatusCode()),
            "reason": str(error.getHttpError()),
            "kind": str(error.getClass().getSimpleName()),
        }


def signature(method: Any) -> str:
    """Return the signature of a method, such as `splitSegment(String,long)`."""
    kinds = ",".join(str(parameter_type.getSimpleName()) for parameter_type in method.getParameterTypes())
    return f"{method.getName()}({kinds})"


def main(url: str, token: str, jars: str, home: str) -> None:
    """Answer the requests as the module describes. Ends the process by `os._exit`, because the client's threads are no daemons."""
    words = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Java's logging goes to the first stream it finds
    library = next(java_home(Path(home)).rglob("libjvm.so"))
    jpype.startJVM(str(library), "-Xmx256m", classpath=[f"{jars}/*"], convertStrings=True)
    admin = JavaAdmin(url, token)
    for line in sys.stdin:
        try:
            answer = admin.ask(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the test is told
            answer = {"failed": f"{type(error).__name__}: {error}"}
        words.write(json.dumps(answer) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
