// Whole numbers that are known only when the sizes of a launch are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace spyre::programs {

// One step of an expression in postfix form.
enum class Step : std::int64_t { Literal, Symbol, Add, Subtract, Multiply, FloorDivide, Modulo, Min, Max };

// An expression over the symbols of a program, in postfix form: `s0 * 8` is Symbol 0, Literal 8, Multiply.
// Division and modulo round towards minus infinity, as Python's do.
class Expression {
public:
  Expression() = default;
  explicit Expression(std::int64_t literal) : literal_(literal) {}
  // Throws InvalidArgument when the steps do not leave exactly one number, name a symbol that does not exist,
  // or are unknown.
  Expression(std::vector<std::pair<Step, std::int64_t>> steps, std::size_t symbols);

  // The value for these symbols. Throws InvalidArgument for a division by zero or a result that 64 bits don't
  // hold.
  std::int64_t evaluate(std::span<const std::int64_t> symbols) const {
    return steps_.empty() ? literal_ : evaluate_steps(symbols);
  }
  bool is_literal() const { return steps_.empty(); }
  // The number of the symbol that the expression is; -1 when it is anything else.
  std::int64_t as_symbol() const;

private:
  std::int64_t evaluate_steps(std::span<const std::int64_t> symbols) const;

  std::int64_t literal_ = 0;
  std::vector<std::pair<Step, std::int64_t>> steps_;
};

} // namespace spyre::programs
