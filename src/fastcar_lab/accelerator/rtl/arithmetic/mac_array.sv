// The int8 MAC array of one core: MACS products a cycle, added up by a tree and summed for one output at a time.
//
// A cycle takes MACS inputs and their weights, so a matrix that lies row by row in memory passes as it lies, and an output
// takes as many cycles as its terms fill. Sums are 32 bits wide and never rounded: 133,144 terms fit. A last cycle with
// fewer terms has zeros.
//
// `first` is high with the first terms of an output, `last` with its last (both where one cycle holds them all). `done` is
// high for one cycle, clog2(MACS) + 3 cycles after the last terms were taken, and `sum` is the output's. Outputs follow one
// another without a gap; a cycle without `valid` changes nothing.
module mac_array #(
    parameter int MACS = 64
) (
    input  logic               clk,
    input  logic               reset,
    input  logic               valid,
    input  logic               first,
    input  logic               last,
    input  logic [8*MACS-1:0]  x,
    input  logic [8*MACS-1:0]  weights,
    output logic               done,
    output logic signed [31:0] sum
);
    localparam int LEVELS = $clog2(MACS);
    localparam int LEAVES = 1 << LEVELS;
    // Registers before the accumulator: operands, products, a level of the tree each.
    localparam int STAGES = LEVELS + 2;

    logic [STAGES-1:0] valid_at, first_at, last_at;

    // Node 1 is the root, nodes 2i and 2i + 1 are added in node i, the leaves are the products.
    logic [32*2*LEAVES-1:32] node;

    for (genvar i = 1; i < LEAVES; i++) begin : g_node
        always_ff @(posedge clk) node[32*i+:32] <= node[32*(2*i)+:32] + node[32*(2*i+1)+:32];
    end

    for (genvar i = 0; i < LEAVES; i++) begin : g_leaf
        if (i < MACS) begin : g_mac
            logic signed [7:0] a, b;
            logic signed [15:0] product;
            assign product = a * b;
            always_ff @(posedge clk) begin
                a <= x[8*i+:8];
                b <= weights[8*i+:8];
                node[32*(LEAVES+i)+:32] <= 32'(product);
            end
        end else begin : g_none
            always_ff @(posedge clk) node[32*(LEAVES+i)+:32] <= '0;
        end
    end

    always_ff @(posedge clk) begin
        valid_at <= reset ? '0 : {valid_at[STAGES-2:0], valid};
        first_at <= {first_at[STAGES-2:0], first};
        last_at <= {last_at[STAGES-2:0], last};
        done <= valid_at[STAGES-1] && last_at[STAGES-1] && !reset;
        if (valid_at[STAGES-1]) sum <= (first_at[STAGES-1] ? 32'sd0 : sum) + $signed(node[32+:32]);
    end
endmodule
