//===- KernBufferization.cpp - kern ops from tensors to buffers -----------===//

#include "dialects/Kern/Kern.h"

#include "mlir/Dialect/Bufferization/IR/DstBufferizableOpInterfaceImpl.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mgq::kern;
using namespace mlir::bufferization;

namespace {
/// Clones a destination-style op with the buffers of its tensors.
template <typename OpTy>
struct DestinationModel
    : DstBufferizableOpInterfaceExternalModel<DestinationModel<OpTy>, OpTy> {
  bool bufferizesToMemoryRead(Operation *op, OpOperand &operand,
                              const AnalysisState &) const {
    // Products and attention only write their destination.
    return isa<LoopsOp>(op) ||
           !cast<DestinationStyleOpInterface>(op).isDpsInit(&operand);
  }

  LogicalResult bufferize(Operation *op, RewriterBase &rewriter,
                          const BufferizationOptions &options,
                          BufferizationState &state) const {
    auto dps = cast<DestinationStyleOpInterface>(op);
    if (dps.hasPureBufferSemantics())
      return success();
    rewriter.setInsertionPoint(op);
    SmallVector<Value> operands, outputs;
    for (OpOperand &operand : op->getOpOperands()) {
      Value value = operand.get();
      if (isa<TensorType>(value.getType())) {
        auto buffer = getBuffer(rewriter, value, options, state);
        if (failed(buffer))
          return failure();
        value = *buffer;
      }
      operands.push_back(value);
      if (dps.isDpsInit(&operand))
        outputs.push_back(value);
    }
    OperationState newOp(op->getLoc(), op->getName(), operands, TypeRange(),
                         op->getAttrs());
    newOp.propertiesAttr = op->getPropertiesAsAttribute();
    for (Region &region : op->getRegions())
      newOp.addRegion()->takeBody(region);
    Operation *created = rewriter.create(newOp);
    if (created->getNumRegions() == 1)
      for (auto [argument, value] :
           llvm::zip_equal(created->getRegion(0).getArguments(), operands))
        argument.setType(value.getType());
    replaceOpWithBufferizedValues(rewriter, op, outputs);
    return success();
  }
};
} // namespace

void mgq::kern::registerBufferization(DialectRegistry &registry) {
  registry.addExtension(+[](MLIRContext *context, KernDialect *) {
    MatmulOp::attachInterface<DestinationModel<MatmulOp>>(*context);
    AttentionOp::attachInterface<DestinationModel<AttentionOp>>(*context);
    AttentionGradOp::attachInterface<DestinationModel<AttentionGradOp>>(
        *context);
    LoopsOp::attachInterface<DestinationModel<LoopsOp>>(*context);
  });
}
