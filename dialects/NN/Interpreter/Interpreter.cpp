//===- Interpreter.cpp - Reference interpreter of nn ----------------------===//

#include "dialects/NN/Interpreter/Evaluate.h"

#include "mlir/IR/DialectResourceBlobManager.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mgq::nn;

using Results = FailureOr<SmallVector<Tensor>>;

/// The results of a call, run in the module around it.
static Results call(func::CallOp op, const Frame &frame,
                    const Parameters &parameters) {
  auto callee = SymbolTable::lookupNearestSymbolFrom<func::FuncOp>(
      op, op.getCalleeAttr());
  if (!callee || callee.isExternal())
    return op.emitOpError("calls ") << op.getCallee() << ", which has no body";
  SmallVector<Tensor> inputs;
  for (Value operand : op.getOperands())
    inputs.push_back(frame[operand]);
  return interpret(callee, inputs, parameters);
}

static Results parameter(ParamRefOp op, const Parameters &parameters) {
  auto found = parameters.find(op.getParam());
  if (found == parameters.end())
    return op.emitOpError("refers to ")
           << op.getParamAttr() << ", which was given no value";
  // What trains is wider than it is stored; numbers here have no width.
  Tensor value = found->second;
  value.type = cast<RankedTensorType>(op.getType());
  return SmallVector<Tensor>{value};
}

/// The results of an op with one result.
template <typename... Ops>
static Results evaluateOne(Operation *op, const Frame &frame) {
  return llvm::TypeSwitch<Operation *, Results>(op)
      .Case<Ops...>([&](auto typed) {
        return SmallVector<Tensor>{evaluate(typed, frame)};
      })
      .Default([](Operation *unknown) {
        return unknown->emitError("the interpreter does not know ")
               << unknown->getName();
      });
}

static Results evaluateAny(Operation *op, const Frame &frame,
                           const Parameters &parameters) {
  if (auto typed = dyn_cast<func::CallOp>(op))
    return call(typed, frame, parameters);
  if (auto typed = dyn_cast<ParamRefOp>(op))
    return parameter(typed, parameters);
  if (auto typed = dyn_cast<ConstantOp>(op)) {
    if (auto dense = dyn_cast<DenseElementsAttr>(typed.getValue()))
      return SmallVector<Tensor>{Tensor(dense)};
    if (auto resource = dyn_cast<DenseResourceElementsAttr>(typed.getValue())) {
      auto *blob = resource.getRawHandle().getBlob();
      return SmallVector<Tensor>{Tensor(DenseElementsAttr::getFromRawBuffer(
          cast<ShapedType>(resource.getType()), blob->getData()))};
    }
  }
  if (auto typed = dyn_cast<AttentionGradOp>(op))
    return evaluateAll(typed, frame);
  if (auto typed = dyn_cast<AdamWOp>(op))
    return evaluateAll(typed, frame);
  return evaluateOne<
      UnaryOp, BinaryOp, CompareOp, SelectOp, CastOp, DropoutOp, MatmulOp,
      ConvOp, ConvGradInputOp, ConvGradWeightOp, PoolOp, PoolGradOp, ReshapeOp,
      TransposeOp, BroadcastOp, SliceOp, PadOp, ConcatOp, GatherOp,
      GatherGradOp, GatherElementsOp, ScatterElementsOp, GatherNDOp,
      ScatterNDOp, MaskedScatterOp, MaskedGatherOp, ShapeOp, ReduceOp,
      ArgReduceOp, CumsumOp, SoftmaxOp, LogSoftmaxOp, LayerNormOp,
      LayerNormGradOp, RMSNormOp, RMSNormGradOp, AttentionOp, RopeOp,
      CrossEntropyOp, CrossEntropyGradOp, LabelWeightsOp, SqNormOp>(op, frame);
}

FailureOr<SmallVector<Tensor>>
mgq::nn::interpret(func::FuncOp function, ArrayRef<Tensor> inputs,
                   const Parameters &parameters) {
  Block &body = function.getBody().front();
  Frame frame;
  for (auto [argument, input] : llvm::zip_equal(body.getArguments(), inputs)) {
    if (argument.getType() != input.type)
      return function.emitOpError("takes ")
             << argument.getType() << ", was given " << input.type;
    frame.set(argument, input);
  }
  for (Operation &op : body.without_terminator()) {
    Results results = evaluateAny(&op, frame, parameters);
    if (failed(results))
      return failure();
    for (auto [value, tensor] : llvm::zip_equal(op.getResults(), *results))
      frame.set(value, std::move(tensor));
  }
  SmallVector<Tensor> returned;
  for (Value value : body.getTerminator()->getOperands())
    returned.push_back(frame[value]);
  return returned;
}
