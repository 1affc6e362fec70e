// First use: an operator becomes a program. The compiler itself is Python (spyre_backend/compiler/eager.py).
#pragma once

#include "eager/table.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace spyre::eager {

// A call that is to become a program.
struct Call {
  const c10::OperatorHandle& op;
  std::span<const c10::IValue> values; // one per argument of the schema
  const std::vector<Signature::Role>& roles;
  const Signature& signature;
  const std::vector<Result>& results;
};

// There is no program now, but the next call may get one: memory was short, or the caller was interrupted.
struct NotNow {};

// The prepared program of a call, or why there can't be one. A compiler throws nothing: the operator has run.
using Compiled = std::variant<std::shared_ptr<const programs::JobPlan>, std::string, NotNow>;
using Compiler = Compiled (*)(const Call& call);

// Set once, before the first device tensor is made. Without one every operator runs as a host kernel.
void set_compiler(Compiler compiler);
Compiler compiler();

} // namespace spyre::eager
