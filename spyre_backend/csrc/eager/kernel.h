// The kernel of every ATen operator that the device has no kernel of its own for.
#pragma once

#include "bridge/host_kernel.h"
#include "eager/table.h"

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace spyre::eager {

// Runs an operator as a prepared program of its own.
//
// The first call of a key runs as one step of the host kernel, which tells what it returns; then the operator
// is compiled for that key, and later calls look it up, allocate the results and launch. What no program can
// hold runs as that one step always; `counts()` tells how often.
//
// A launch waits for everything its stream was given before and for what other streams do to its memory, and
// returns when it is done, as the host kernel does: an error is raised by the call that made it.
class EagerKernel final : public c10::OperatorKernel {
public:
  explicit EagerKernel(const c10::OperatorHandle& op);
  ~EagerKernel() override;

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

  struct Counts {
    std::string name;
    std::uint64_t compiled; // keys that became programs
    std::uint64_t launches; // calls that ran as a program
    std::uint64_t outside;  // calls that did not, without the first one of each key
    std::string reason;     // of the last of them
  };
  // Of all operators that were called, by name.
  static std::vector<Counts> counts();

private:
  void run_outside(const c10::OperatorHandle& op, torch::jit::Stack* stack, const char* reason);
  // Counts a call that ran or is about to run outside of a program; warns or throws as SPYRE_FALLBACK says.
  void count_outside(const char* reason);
  void trace(const c10::OperatorHandle& op, torch::jit::Stack* stack, const Signature& signature);
  void launch(const Entry& entry, const Signature& signature, const c10::OperatorHandle& op,
              torch::jit::Stack* stack);

  const bridge::HostKernelPlan host_;
  const std::string name_;
  const char* never_ = nullptr; // why no call of this operator can be a program; null if some can
  std::vector<Signature::Role> roles_;
  bool writes_ = false;
  Table table_;
  std::atomic<std::uint64_t> compiled_{0};
  std::atomic<std::uint64_t> launches_{0};
  std::atomic<std::uint64_t> outside_{0};
  std::atomic<const char*> reason_{nullptr};
};

} // namespace spyre::eager
