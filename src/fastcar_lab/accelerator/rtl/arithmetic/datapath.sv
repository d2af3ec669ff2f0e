// The arithmetic of one core, driven by its sequencer: weight buffer, MAC array, vector unit, and the vectors between them.
//
// A multiply of n cycles takes n words of MACS weights from the buffer, in the order in which they came, and the words of an
// input vector over and over, once an output: of the row's own vector, or of the codes in a multiply that waited for the
// vector unit. Multiplies of the first kind are of gate and up in turn. Sums are requantised as they come; `activate`
// reads pairs of them, `code` codes the products, `store` gives the outputs of down, each LANES numbers a cycle.
// Tiles hold whole words, gate and up whole outputs and whole groups of LANES.
`default_nettype none
module datapath #(
    parameter int MACS = 64,
    parameter int LANES = 8,            // a power of two that divides MACS
    parameter int BUFFER_BITS = 9,      // log2 of the words that the weight buffer holds
    parameter int INPUT_BITS = 4,       // log2 of the words of the longer vector
    parameter int NUMBER_BITS = 10,     // log2 of its numbers
    parameter     TABLE = "logistic.hex"
) (
    input  wire logic                   clk,
    input  wire logic                   rst,

    // Before a layer: what it reads. `what`: 0 a word of the vector of a row, 1 the scale of it (exponent, mantissa), 2
    // the multiplier of an output of matrix `row` (gate, up, down).
    input  wire logic                   write,
    input  wire logic [1:0]             what,
    input  wire logic [4:0]             write_row,
    input  wire logic [NUMBER_BITS-1:0] write_at,
    input  wire logic [8*MACS-1:0]      write_word,
    input  wire logic [INPUT_BITS:0]    own_words,
    input  wire logic [INPUT_BITS:0]    code_words,
    input  wire logic [17:0]            shifts,       // exponents of the matrices less the bits behind the point

    input  wire logic                   begins,
    input  wire logic [4:0]             row,
    input  wire logic                   mac_run,
    input  wire logic                   mac_activated,
    input  wire logic                   mac_done,
    input  wire logic                   vector_run,
    input  wire logic                   vector_begin,
    input  wire logic [2:0]             vector_operation,

    input  wire logic                   weight_valid,
    input  wire logic [8*MACS-1:0]      weight_word,
    output      logic                   out_valid,
    output wire logic [32*LANES-1:0]    out
);
  localparam int ARRAY = $clog2(MACS) + 4;
  localparam int GROUPS = MACS / LANES;
  localparam int GROUP_BITS = GROUPS > 1 ? $clog2(GROUPS) : 1;
  localparam int AT_BITS = NUMBER_BITS - $clog2(LANES);
  localparam logic [2:0] ACTIVATE = 2, STORE = 4, CODE = 5;

  // Weights and inputs to the array.
  logic [8*MACS-1:0]      weights [2**BUFFER_BITS];
  logic [8*MACS-1:0]      vectors [2**(INPUT_BITS+5)];
  logic [8*MACS-1:0]      weight, own;
  wire logic [8*MACS-1:0] coded;
  logic [BUFFER_BITS-1:0] weight_in, weight_out;
  logic [INPUT_BITS-1:0]  term;
  logic                   valid, first, last, from_codes, up;
  wire logic              whole = {1'b0, term} == (mac_activated ? code_words : own_words) - 1'b1;

  always_ff @(posedge clk) begin
    if (weight_valid) weights[weight_in] <= weight_word;
    if (write && what == 2'd0) vectors[{write_row, INPUT_BITS'(write_at)}] <= write_word;
    weight <= weights[weight_out];
    own <= vectors[{row, term}];
    from_codes <= mac_activated;
    first <= term == '0;
    last <= whole;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      {weight_in, weight_out, term, valid, up} <= '0;
    end else begin
      if (weight_valid) weight_in <= weight_in + 1'b1;
      if (mac_run) begin
        weight_out <= weight_out + 1'b1;
        term <= whole ? '0 : term + 1'b1;
      end
      valid <= mac_run;
      if (begins) up <= 1'b0;
      else if (mac_done && !mac_activated) up <= !up;
    end
  end

  wire logic               sum_valid;
  wire logic signed [31:0] sum;
  mac_array #(.MACS(MACS)) array (
      .clk, .reset(rst), .valid, .first, .last, .x(from_codes ? coded : own), .weights(weight), .done(sum_valid), .sum);

  // Of which matrix a sum is, and which of its outputs: 0 gate, 1 up, 2 down.
  logic [2*ARRAY-1:0]     matrices;
  logic [NUMBER_BITS-1:0] number [3];
  wire logic [1:0]        matrix = matrices[2*ARRAY-1-:2];
  always_ff @(posedge clk) begin
    matrices <= {matrices[2*ARRAY-3:0], mac_activated ? 2'd2 : {1'b0, up}};
    for (int m = 0; m < 3; m++)
      if (begins) number[m] <= '0;
      else if (sum_valid && matrix == 2'(m)) number[m] <= number[m] + 1'b1;
  end

  // Requantisation: a cycle reads the multiplier, four compute.
  logic [15:0]        multipliers [2**(NUMBER_BITS+2)];
  logic [21:0]        scales [32];
  logic [15:0]        multiplier;
  logic               scaled_valid;
  logic signed [31:0] scaled_sum;
  logic [1:0]         scaled_matrix;
  wire logic [15:0]   code_mantissa;
  wire logic [4:0]    drop;
  wire logic [21:0]   scale = scaled_matrix == 2'd2 ? {6'd16 - {1'b0, drop}, code_mantissa} : scales[row];
  wire logic [6:0]    shift = {1'b0, scale[21:16]} + {1'b0, shifts[6*scaled_matrix+:6]};
  wire logic          fixed_valid;
  wire logic signed [31:0] fixed;
  always_ff @(posedge clk) begin
    if (write && what == 2'd1) scales[write_row] <= write_word[21:0];
    if (write && what == 2'd2) multipliers[{write_row[1:0], write_at}] <= write_word[15:0];
    multiplier <= multipliers[{matrix, number[matrix]}];
    scaled_valid <= sum_valid && !rst;
    scaled_sum <= sum;
    scaled_matrix <= matrix;
  end
  requantise scaler (
      .clk, .reset(rst), .valid(scaled_valid), .sum(scaled_sum), .multiplier, .mantissa(scale[15:0]),
      .by(shift > 7'd62 ? 6'd62 : shift[5:0]), .out_valid(fixed_valid), .out(fixed));

  logic [4*(NUMBER_BITS+2)-1:0] places;
  logic [NUMBER_BITS+1:0]       place;
  wire logic [1:0]              fixed_matrix = places[4*(NUMBER_BITS+2)-1-:2];
  wire logic [NUMBER_BITS-1:0]  fixed_number = places[3*(NUMBER_BITS+2)+:NUMBER_BITS];
  always_ff @(posedge clk) begin
    place <= {matrix, number[matrix]};
    places <= {places[3*(NUMBER_BITS+2)-1:0], place};
  end

  // The vector unit: places of its operations, counted through a row.
  logic [AT_BITS-1:0]    activate_at, hidden_at, code_at, store_at;
  logic                  activating, coding;
  wire logic             hidden_valid, q_valid;
  wire logic [LANES-1:0] hidden_valids;
  wire logic             is_activate = vector_run && vector_operation == ACTIVATE;
  wire logic             is_code = vector_run && vector_operation == CODE;
  wire logic             is_store = vector_run && vector_operation == STORE;
  wire logic [32*LANES-1:0] hidden, coder_x;
  wire logic [8*LANES-1:0]  q;
  assign hidden_valid = hidden_valids[0];
  always_ff @(posedge clk) begin
    if (begins) {activate_at, hidden_at, code_at, store_at} <= '0;
    else begin
      if (is_activate) activate_at <= activate_at + 1'b1;
      if (hidden_valid) hidden_at <= hidden_at + 1'b1;
      if (is_code) code_at <= code_at + 1'b1;
      if (is_store) store_at <= store_at + 1'b1;
    end
    activating <= is_activate && !rst;
    coding <= is_code && !rst;
    out_valid <= is_store && !rst;
  end

  for (genvar l = 0; l < LANES; l++) begin : lane
    logic [31:0] gates [2**AT_BITS], ups [2**AT_BITS], results [2**AT_BITS], middle [2**AT_BITS];
    logic [31:0] gate, other, result, to_code;
    wire logic   mine = fixed_valid && (fixed_number & NUMBER_BITS'(LANES - 1)) == NUMBER_BITS'(l);
    wire logic [AT_BITS-1:0] at = AT_BITS'(fixed_number >> $clog2(LANES));
    always_ff @(posedge clk) begin
      if (mine && fixed_matrix == 2'd0) gates[at] <= fixed;
      if (mine && fixed_matrix == 2'd1) ups[at] <= fixed;
      if (mine && fixed_matrix == 2'd2) results[at] <= fixed;
      if (hidden_valid) middle[hidden_at] <= hidden[32*l+:32];
      gate <= gates[activate_at];
      other <= ups[activate_at];
      result <= results[store_at];
      to_code <= middle[code_at];
    end
    activate #(.TABLE(TABLE)) activation (
        .clk, .reset(rst), .valid(activating), .gate, .up(other), .out_valid(hidden_valids[l]), .out(hidden[32*l+:32]));
    assign coder_x[32*l+:32] = hidden_valid ? hidden[32*l+:32] : to_code;
    assign out[32*l+:32] = result;
  end

  coder #(.LANES(LANES)) code (
      .clk, .reset(rst), .clear(begins), .measure(hidden_valid), .fix(vector_begin && vector_operation == CODE),
      .valid(coding), .x(coder_x), .mantissa(code_mantissa), .drop, .out_valid(q_valid), .q);

  // Codes, LANES a write, MACS a read.
  logic [GROUP_BITS-1:0] group;
  logic [INPUT_BITS-1:0] code_word;
  always_ff @(posedge clk) begin
    if (begins) {group, code_word} <= '0;
    else if (q_valid) begin
      group <= group == GROUP_BITS'(GROUPS - 1) ? '0 : group + 1'b1;
      if (group == GROUP_BITS'(GROUPS - 1)) code_word <= code_word + 1'b1;
    end
  end
  for (genvar g = 0; g < GROUPS; g++) begin : codes
    logic [8*LANES-1:0] held [2**INPUT_BITS];
    logic [8*LANES-1:0] next;
    always_ff @(posedge clk) begin
      if (q_valid && group == GROUP_BITS'(g)) held[code_word] <= q;
      next <= held[term];
    end
    assign coded[8*LANES*g+:8*LANES] = next;
  end

  wire logic unused = &{1'b0, hidden_valids};
endmodule
`default_nettype wire
