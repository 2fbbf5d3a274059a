"""The frozen types that travel between stages. Standard library and NumPy only."""

from quantpipe.types.baseline import BaselinePart, BaselineRow
from quantpipe.types.bit_limits import ActivationLimits, WeightLimits
from quantpipe.types.caches import CacheLimits, CacheSite
from quantpipe.types.choices import SOFT_KL, Choice, ChoiceSpace, OptionValue, Point, Score, Trial
from quantpipe.types.compare import ComparedRun, CompareReport, DifferenceRow, PairedRow
from quantpipe.types.data import Batch, Objects, Outputs, Samples, TensorInfo, groups_of, objects_of, sample_name
from quantpipe.types.dtype import DType
from quantpipe.types.dumped import (
    DumpedRow,
    DumpedSet,
    DumpReport,
    ExplanationRow,
    IdentifiedField,
    IdentifyReport,
    LayerFit,
    TimesReport,
)
from quantpipe.types.embedding_table import RowTable, TableLayout, TableLimits, TableNumbers, TableSite
from quantpipe.types.explained import (
    AccumulatorRow,
    AdviceRow,
    AloneRow,
    CauseKind,
    CauseRow,
    ChannelRow,
    DiagnosisPart,
    ExplainReport,
    MomentsRow,
    SplitRow,
)
from quantpipe.types.hardware import HardwareSpec
from quantpipe.types.hardware_fields import (
    MULTIPLIER_BITS,
    Accumulator,
    AddInputs,
    BiasScale,
    Chip,
    ChipType,
    Cost,
    FixedRounding,
    FloatOn,
    FloatType,
    FunctionKind,
    Isa,
    OpSignature,
    Overflow,
    Padding,
    PadValue,
    RequantizeKind,
    RequantizeSpec,
    Rounding,
    Scales,
    Skip,
    Unify,
)
from quantpipe.types.imported import GivenTensor, GivenWeight, Imported, ImportedGrid, Keep
from quantpipe.types.narrowing import FixedPoint, Requantize
from quantpipe.types.plan import (
    Accumulate,
    Average,
    BlockGrid,
    Contract,
    Device,
    KernelPlan,
    Limit,
    Lookup,
    Move,
    Pairs,
    Product,
    Program,
    Quantizer,
    QuantPlan,
    Sum,
    Term,
    WeightTensor,
)
from quantpipe.types.program import Step, StepOp
from quantpipe.types.random_ops import RandomOps
from quantpipe.types.reason import Reason, ReasonKind
from quantpipe.types.recurrent_loop import (
    NO_BODIES,
    NO_CELLS,
    BodyForms,
    LoopForms,
    LoopProduct,
    LoopSite,
    RecurrentLimits,
)
from quantpipe.types.report_parts import DeploymentPart, DetectionsPart, LatencyPart, SpeedPart
from quantpipe.types.report_rows import (
    ChoiceRow,
    ConfirmationPart,
    ContributionRow,
    FinalistRow,
    FindingRow,
    FloatNodeRow,
    FormRow,
    ImportedChangeRow,
    ImportedComparedPart,
    ImportedOutputRow,
    ImportedPart,
    LayerRow,
    LoadedPart,
    LossRow,
    OutputPartRow,
    OutputRow,
    OverflowRow,
    PrecisionTrialRow,
    RaisedRow,
    ReasonRow,
    RecoveredLayerRow,
    RectifiedRow,
    RescaleRow,
    RoleRow,
    StepRow,
    TableRow,
    ThresholdRuleRow,
    WithoutKernelRow,
)
from quantpipe.types.reports import (
    AgreementPart,
    CalibratePart,
    ConversionsPart,
    CostPart,
    DataPart,
    Metrics,
    ModelMetrics,
    ModelPart,
    OptionalParts,
    ProofPart,
    RunPart,
    RunReport,
    by_model,
)
from quantpipe.types.sample_rows import (
    BeyondRow,
    CacheRow,
    ContinuationRow,
    EnoughPart,
    GeneralizationPart,
    GroupRow,
    KernelStepsPart,
    NextTokensPart,
    StepsPart,
    StepsRow,
    WorstSampleRow,
)
from quantpipe.types.schema import Blocks, Denominator, Granularity, PowerOfTwo, Schema, Symmetry, TensorSchema
from quantpipe.types.search_report import (
    DevicePart,
    FrontPart,
    LeftOutPart,
    PrecisionRecord,
    RecoveryGain,
    RecoveryRecord,
    ReplayedSearch,
    SearchReport,
)
from quantpipe.types.statistics import ChannelStats, Profile, Range, TensorStats
from quantpipe.types.strategy import Strategy
from quantpipe.types.strategy_file import Measured, MoreResults, ResultsPart, SchemaPart, StrategyFile
from quantpipe.types.structure import Structure
from quantpipe.types.topology import DynamicCell, Edge, Form, Kernel, Operand, ScaleGroup, Topology, WeightSite
