//===- Optimizer.cpp - The kernels the runtime calls itself ---------------===//
//
// Adds to a module of kernels, for any number n of elements:
//
//   mgq_adamw(parameter, gradient, momentum, variance, scalars, n)
//   mgq_accumulate(sum, values, n)
//   mgq_cuda_sq_norm(sum, blocks, values, n)
//   mgq_cuda_scale(values, factor, n)
//
// host functions that launch kernels (runtime/include/rt_cuda.h).
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Distribute.h"
#include "passes/Kernels/Cuda/RuntimeKernelWriter.h"
#include "runtime/include/rt.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAADDOPTIMIZERPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;

namespace {
class OptimizerWriter : public RuntimeKernelWriter {
public:
  using RuntimeKernelWriter::RuntimeKernelWriter;

  void addAdamW();
  void addAccumulate();
  void addSquaredNorm();
  void addScale();

private:
  using Body = llvm::function_ref<void(Writer &, ValueRange, Value)>;
  gpu::GPUFuncOp perElement(StringRef name, ArrayRef<Type> types, Body body);
  gpu::GPUFuncOp
  perBlock(StringRef name, ArrayRef<Type> types,
           llvm::function_ref<Value(Writer &, ValueRange, Value)>);
};
} // namespace

/// A thread for each of the n elements; n is the last parameter.
gpu::GPUFuncOp OptimizerWriter::perElement(StringRef name, ArrayRef<Type> types,
                                           Body body) {
  auto function = kernel(name, types);
  Writer w(b, loc);
  Value thread = gpu::ThreadIdOp::create(b, loc, gpu::Dimension::x);
  Value block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  Value index =
      w.toI64(w.s.add(w.s.mul(block, w.s.index(kRuntimeThreads)), thread));
  ValueRange arguments = function.getBody().front().getArguments();
  Value inside = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::slt, index,
                                       arguments.back());
  auto guard = scf::IfOp::create(b, loc, inside, /*withElseRegion=*/false);
  gpu::ReturnOp::create(b, loc);
  b.setInsertionPoint(guard.thenBlock()->getTerminator());
  body(w, arguments, index);
  return function;
}

/// A block of threads sums what `sum` gives for block i; element i of the first
/// parameter gets it.
gpu::GPUFuncOp OptimizerWriter::perBlock(
    StringRef name, ArrayRef<Type> types,
    llvm::function_ref<Value(Writer &, ValueRange, Value)> sum) {
  auto function = kernel(name, types);
  Writer w(b, loc);
  Value thread = gpu::ThreadIdOp::create(b, loc, gpu::Dimension::x);
  Value block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  ValueRange arguments = function.getBody().front().getArguments();
  Value total = sum(w, arguments, block);
  Value first = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::eq, thread,
                                      w.s.index(0));
  auto guard = scf::IfOp::create(b, loc, first, /*withElseRegion=*/false);
  gpu::ReturnOp::create(b, loc);
  b.setInsertionPoint(guard.thenBlock()->getTerminator());
  w.store(total, function.getArgument(0), w.toI64(block));

  LanePlan plan = planLanes(function.getBody().front());
  plan.lanes = kRuntimeThreads;
  distributeRow(plan, thread, thread, [&](Type element, int64_t count) {
    return addSharedBuffer(function, element, count);
  });
  return function;
}

/// See nn.adamw for the formula and the order of the scalars.
void OptimizerWriter::addAdamW() {
  enum { parameter, gradient, momentum, variance, firstScalar };
  SmallVector<Type> types(4, pointer);
  types.append(MGQ_ADAMW_SCALARS, b.getF32Type());
  types.push_back(b.getI64Type());
  auto update =
      perElement("mgq_adamw", types, [](Writer &w, ValueRange in, Value i) {
        ScalarBuilder &s = w.s;
        ValueRange c = in.slice(firstScalar, MGQ_ADAMW_SCALARS);
        AdamWState now{w.load(in[parameter], i), w.load(in[momentum], i),
                       w.load(in[variance], i)};
        AdamWState next = updateAdamW(s, c, now, w.load(in[gradient], i));
        w.store(next.parameter, in[parameter], i);
        w.store(next.momentum, in[momentum], i);
        w.store(next.variance, in[variance], i);
      });
  auto function = host("mgq_adamw", {pointer, pointer, pointer, pointer,
                                     pointer, b.getI64Type()});
  Writer w(b, loc);
  SmallVector<Value> operands(function.getArguments().take_front(4));
  for (int64_t i = 0; i < MGQ_ADAMW_SCALARS; ++i)
    operands.push_back(w.load(function.getArgument(4), w.i64(i)));
  Value count = function.getArgument(5);
  operands.push_back(count);
  launch(update, blocksOf(count, kRuntimeThreads), operands);
  LLVM::ReturnOp::create(b, loc, ValueRange());
}

void OptimizerWriter::addAccumulate() {
  Type types[] = {pointer, pointer, b.getI64Type()};
  auto add = perElement(
      "mgq_accumulate", types, [](Writer &w, ValueRange in, Value i) {
        w.store(w.s.add(w.load(in[0], i), w.load(in[1], i)), in[0], i);
      });
  auto function = host("mgq_accumulate", types);
  launch(add, blocksOf(function.getArgument(2), kRuntimeThreads),
         function.getArguments());
  LLVM::ReturnOp::create(b, loc, ValueRange());
}

void OptimizerWriter::addScale() {
  Type f64 = b.getF64Type(), f32 = b.getF32Type();
  Type types[] = {pointer, f64, b.getI64Type()};
  auto scale =
      perElement("mgq_scale", types, [&](Writer &w, ValueRange in, Value i) {
        Value wide = w.s.cast(w.load(in[0], i), f64, false, false);
        w.store(w.s.cast(w.s.mul(wide, in[1]), f32, false, false), in[0], i);
      });
  auto function = host("mgq_cuda_scale", types);
  launch(scale, blocksOf(function.getArgument(2), kRuntimeThreads),
         function.getArguments());
  LLVM::ReturnOp::create(b, loc, ValueRange());
}

void OptimizerWriter::addSquaredNorm() {
  Type f64 = b.getF64Type(), f32 = b.getF32Type();
  // Sum of `term(i)` over [begin, end).
  auto sum = [&](Writer &w, Value begin, Value end, auto term) -> Value {
    auto loop = scf::ForOp::create(b, loc, begin, end, w.s.index(1),
                                   w.s.constant(f64, 0));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToEnd(loop.getBody());
    Value next = w.s.addAnyOrder(loop.getRegionIterArg(0),
                                 term(w.toI64(loop.getInductionVar())));
    scf::YieldOp::create(b, loc, next);
    return loop.getResult(0);
  };
  Type types[] = {pointer, pointer, b.getI64Type()};
  auto squares = perBlock(
      "mgq_sq_norm_blocks", types, [&](Writer &w, ValueRange in, Value block) {
        Value begin = w.s.mul(block, w.s.index(MGQ_NORM_BLOCK));
        Value end = arith::MinSIOp::create(
            b, loc, w.s.add(begin, w.s.index(MGQ_NORM_BLOCK)),
            w.s.toIndex(in[2]));
        return sum(w, begin, end, [&](Value i) {
          Value x = w.s.cast(w.load(in[1], i, f32), f64, false, false);
          return w.s.mul(x, x);
        });
      });
  auto total =
      perBlock("mgq_sq_norm_sum", types, [&](Writer &w, ValueRange in, Value) {
        return sum(w, w.s.index(0), w.s.toIndex(in[2]),
                   [&](Value i) { return w.load(in[1], i, f64); });
      });
  auto function =
      host("mgq_cuda_sq_norm", {pointer, pointer, pointer, b.getI64Type()});
  Writer w(b, loc);
  Value result = function.getArgument(0), blocks = function.getArgument(1);
  Value count = function.getArgument(3);
  Value number = blocksOf(count, MGQ_NORM_BLOCK);
  launch(squares, number, {blocks, function.getArgument(2), count});
  launch(total, w.s.index(1), {result, blocks, w.toI64(number)});
  LLVM::ReturnOp::create(b, loc, ValueRange());
}

namespace {
struct CudaAddOptimizerPass
    : mgq::kernels::impl::CudaAddOptimizerPassBase<CudaAddOptimizerPass> {
  void runOnOperation() override {
    if (getOperation().lookupSymbol("mgq_adamw"))
      return;
    OptimizerWriter writer(getOperation());
    writer.addAdamW();
    writer.addAccumulate();
    writer.addSquaredNorm();
    writer.addScale();
  }
};
} // namespace
