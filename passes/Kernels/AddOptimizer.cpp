//===- AddOptimizer.cpp - The kernels the runtime calls itself ------------===//
//
// Adds to a module of kernels what rt.h declares and every program needs:
//
//   mgq_adamw       the update of nn.adamw on n elements
//   mgq_sq_norm     the sum of squares of at most MGQ_NORM_BLOCK elements, f64
//   mgq_accumulate  sum += values
//
// They are plain loops on pointers that do not overlap; LLVM vectorises them.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Lowering.h"
#include "passes/Kernels/Passes.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_ADDOPTIMIZERPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;

namespace {
/// Writes one function: pointers, then the number of elements.
class FunctionWriter {
public:
  FunctionWriter(ModuleOp module, StringRef name, unsigned pointers,
                 Type result)
      : builder(module.getContext()), scalars(builder, module.getLoc()) {
    MLIRContext *context = module.getContext();
    builder.setInsertionPointToEnd(module.getBody());
    pointer = LLVM::LLVMPointerType::get(context);
    SmallVector<Type> types(pointers, pointer);
    types.push_back(builder.getI64Type());
    if (!result)
      result = LLVM::LLVMVoidType::get(context);
    function =
        LLVM::LLVMFuncOp::create(builder, module.getLoc(), name,
                                 LLVM::LLVMFunctionType::get(result, types));
    for (unsigned i = 0; i < pointers; ++i)
      function.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(),
                          builder.getUnitAttr());
    builder.setInsertionPointToStart(function.addEntryBlock(builder));
  }

  Value address(unsigned argument, Value index) {
    return LLVM::GEPOp::create(
        builder, scalars.loc, pointer, builder.getF32Type(),
        function.getArgument(argument), ArrayRef<LLVM::GEPArg>{index});
  }
  Value load(unsigned argument, Value index) {
    return LLVM::LoadOp::create(builder, scalars.loc, builder.getF32Type(),
                                address(argument, index), /*alignment=*/4);
  }
  void store(Value value, unsigned argument, Value index) {
    LLVM::StoreOp::create(builder, scalars.loc, value, address(argument, index),
                          /*alignment=*/4);
  }
  Value i64(int64_t value) {
    return scalars.constant(builder.getI64Type(), value);
  }
  /// Loops over the elements; carries `init` if there is one.
  Value loop(Value init, llvm::function_ref<Value(Value, Value)> body) {
    Value count = function.getArgument(function.getNumArguments() - 1);
    auto op = scf::ForOp::create(builder, scalars.loc, i64(0), count, i64(1),
                                 init ? ValueRange(init) : ValueRange());
    OpBuilder::InsertionGuard guard(builder);
    if (init) {
      builder.setInsertionPointToEnd(op.getBody());
      Value next = body(op.getInductionVar(), op.getRegionIterArg(0));
      scf::YieldOp::create(builder, scalars.loc, next);
      return op.getResult(0);
    }
    builder.setInsertionPoint(op.getBody()->getTerminator());
    body(op.getInductionVar(), Value());
    return Value();
  }
  void finish(Value result) {
    LLVM::ReturnOp::create(builder, scalars.loc,
                           result ? ValueRange(result) : ValueRange());
  }

  OpBuilder builder;
  ScalarBuilder scalars;

private:
  Type pointer;
  LLVM::LLVMFuncOp function;
};
} // namespace

AdamWState mgq::kernels::updateAdamW(ScalarBuilder &s, ValueRange c,
                                     const AdamWState &now, Value gradient) {
  Value g = s.mul(gradient, c[0]);
  Value p = s.mul(now.parameter, c[1]);
  Value m = now.momentum;
  m = s.add(m, s.mul(c[3], s.sub(g, m)));
  Value v = s.add(s.mul(now.variance, c[4]), s.mul(s.mul(c[5], g), g));
  Value root = s.add(s.mul(s.sqrt(v), c[7]), c[8]);
  return {s.sub(p, s.div(s.mul(c[6], m), root)), m, v};
}

static void addAdamW(ModuleOp module) {
  enum { parameter, gradient, momentum, variance, scalarsArgument };
  FunctionWriter w(module, "mgq_adamw", 5, Type());
  ScalarBuilder &s = w.scalars;
  SmallVector<Value> c;
  for (int i = 0; i < 9; ++i)
    c.push_back(w.load(scalarsArgument, w.i64(i)));
  w.loop(Value(), [&](Value i, Value) {
    AdamWState now{w.load(parameter, i), w.load(momentum, i),
                   w.load(variance, i)};
    AdamWState next = updateAdamW(s, c, now, w.load(gradient, i));
    w.store(next.parameter, parameter, i);
    w.store(next.momentum, momentum, i);
    w.store(next.variance, variance, i);
    return Value();
  });
  w.finish(Value());
}

static void addSquaredNorm(ModuleOp module) {
  Type f64 = Float64Type::get(module.getContext());
  FunctionWriter w(module, "mgq_sq_norm", 1, f64);
  ScalarBuilder &s = w.scalars;
  Value sum = w.loop(s.constant(f64, 0), [&](Value i, Value sum) {
    Value x = s.cast(w.load(0, i), f64, false, false);
    return s.addAnyOrder(sum, s.mul(x, x));
  });
  w.finish(sum);
}

static void addAccumulate(ModuleOp module) {
  FunctionWriter w(module, "mgq_accumulate", 2, Type());
  w.loop(Value(), [&](Value i, Value) {
    w.store(w.scalars.add(w.load(0, i), w.load(1, i)), 0, i);
    return Value();
  });
  w.finish(Value());
}

namespace {
struct AddOptimizerPass
    : mgq::kernels::impl::AddOptimizerPassBase<AddOptimizerPass> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (module.lookupSymbol("mgq_adamw"))
      return;
    addAdamW(module);
    addSquaredNorm(module);
    addAccumulate(module);
  }
};
} // namespace
