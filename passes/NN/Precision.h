//===- Precision.h - What each product of a model computes in ---*- C++ -*-===//
//
// A product takes its operands in f32 or in bf16; it sums in f32. What it takes
// follows from the policy (`--precision`), and from what it reads or gives:
//
//                            layered   bf16
//   reads, or gives the
//   gradient of, a parameter
//     that trains            f32       bf16
//     that is frozen         bf16      bf16
//   neither (attention)      bf16 (1)  bf16
//
// (1) f32 in a layer whose weights all train. `--precision-of=GLOB=f32|bf16`
// changes that for parameters, or all products of layers, whose names match.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_PASSES_NN_PRECISION_H
#define MGQ_PASSES_NN_PRECISION_H

#include "passes/NN/Globs.h"

#include "dialects/NN/NN.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::nn {

enum class Precision : uint8_t {
  none, ///< not a parameter
  f32,
  bf16
};

/// What the products of a layer function take, in one kind of call.
struct CallPrecision {
  /// By operand: of products that read this parameter.
  llvm::SmallVector<Precision> operands;
  /// Operands that are frozen parameters.
  llvm::BitVector frozen;
  /// By result: of products that give this parameter's gradient.
  llvm::SmallVector<Precision> results;
  /// Of all other products.
  Precision rest = Precision::f32;

  bool operator==(const CallPrecision &other) const {
    return operands == other.operands && frozen == other.frozen &&
           results == other.results && rest == other.rest;
  }
};

/// The layer that a call of @model or @train belongs to.
llvm::StringRef instanceOf(mlir::func::CallOp call);

class PrecisionPolicy {
public:
  /// `overrides` are GLOB=f32|bf16; a later one wins. Reports what is wrong
  /// with them, such as a glob that names neither parameter nor layer.
  static mlir::FailureOr<PrecisionPolicy>
  create(mlir::ModuleOp module, llvm::StringRef precision,
         llvm::ArrayRef<std::string> overrides);

  /// Whether any product may take bf16.
  bool isNeeded() const { return base != Base::f32 || !overrides.empty(); }
  /// Whether layers pass activations to each other as bf16.
  bool hasNarrowStream() const { return base == Base::bf16; }

  CallPrecision of(mlir::func::CallOp call);

private:
  enum class Base { f32, layered, bf16 };
  struct Override {
    Glob glob;
    Precision precision;
  };
  explicit PrecisionPolicy(mlir::ModuleOp module) : symbols(module) {}
  mlir::LogicalResult addOverride(mlir::ModuleOp module, llvm::StringRef text);
  void chooseRest(mlir::ModuleOp module);
  Precision ofParam(ParamOp param, llvm::StringRef instance) const;

  mlir::SymbolTable symbols;
  Base base = Base::f32;
  std::vector<Override> overrides;
  /// By layer instance.
  llvm::StringMap<Precision> rest;
};

} // namespace mgq::nn

#endif // MGQ_PASSES_NN_PRECISION_H
