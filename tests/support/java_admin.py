"""Pulsar 5's own Java admin client in a process of its own, asked line by line.

`python -m tests.support.java_admin URL TOKEN JARS`. Each line of input is a JSON object with `call`, a signature such as
`splitSegment(String,long)`, `arguments`, and `of`: `scalableTopics` or `namespaces`. Each line of output is `{"result": …}`,
`{"refused": status, "reason": …}` or `{"failed": …}`. The call `*` lists the signatures. A JVM cannot be started twice in a process,
hence the process.
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
    """The client, and what it can do by signature."""

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
            name: {signature(one): one for one in interface.class_.getMethods()}
            for name, interface in interfaces.items()
        }

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """One call and what came of it."""
        methods = self._methods[question["of"]]
        if question["call"] == "*":
            return {"result": sorted(methods)}
        method = methods[question["call"]]
        kinds = [one.getSimpleName() for one in method.getParameterTypes()]
        given = [self._java_of(kind, one) for kind, one in zip(kinds, question["arguments"], strict=True)]
        client = getattr(self._admin, question["of"])()
        try:
            found = getattr(client, str(method.getName()))(*given)
            if method.getReturnType().getSimpleName() == "CompletableFuture":
                found = found.get()
        except self._java.lang.Exception as error:
            return self._refusal(error)
        return {"result": self._python_of(found)}

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

    def _python_of(self, found: Any) -> Any:
        return None if found is None else json.loads(str(self._mapper.writer().writeValueAsString(found)))

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
    """`splitSegment(String,long)`."""
    kinds = ",".join(str(one.getSimpleName()) for one in method.getParameterTypes())
    return f"{method.getName()}({kinds})"


def main(url: str, token: str, jars: str, home: str) -> None:
    """See the module. The process is ended by force: the client's threads are no daemons."""
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
